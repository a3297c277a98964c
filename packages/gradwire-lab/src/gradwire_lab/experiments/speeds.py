"""Tables of training speeds: means over seeds with intervals, and comparisons that recognize ties.

Runs with the same seed share weights, batches, and target, so a ratio is the geometric mean of the seeds'
ratios; two methods tie if its 95 % interval includes 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import fmean, median

from gradwire.tables import Column, Table, figure
from gradwire.timing.interval import Ratio, half_width
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.learning import LEAST_SEEDS, Goal, exact_trainings, loss_of
from gradwire_lab.job.record import LAST, reach

JUDGE, ALONE = "DDP", "alone"
"""The baseline, whose median last loss is the target loss, and the method without an exchange."""
UNJUDGED = (ALONE, "DDP again")
ATTACHED, PIPELINED = "attach(model)", "PipeSGD(model)"
"""The methods of gradwire without a plan. These methods measure and choose a plan within the timed steps."""
HOOK, POWER_SGD = "bf16 hook", "PowerSGD 1"
"""The PyTorch hooks for comparison with ``attach(model)``."""
FIXED = ("fp8 on DDP", "ecsq:0.5 on DDP", "quantize:4 on DDP", "planned, on DDP")
"""The methods whose plans don't change during training."""
EQUAL = 1.01
"""The ratio up to which losses are equal. A different summation order changes a loss by as much."""
COLUMNS = (
    Column.of_text("method"),
    Column("step", "ms"),
    Column("steps", "to loss"),
    Column("time", "s"),
    Column("accuracy", "%"),
    Column.of_text("time, over DDP"),
)
COMPARISONS = (Column.of_text("compared"), Column.of_text("time to loss"), Column.of_text("step"))
NOTE = (
    "Steps and time are counted until DDP's final loss, including the choice of plans; a method that "
    "misses this loss with any seed has no steps and no time. Accuracy is the final accuracy on held-out "
    "data. ± and parentheses are 95 % intervals over the seeds. A ratio is the second method's time "
    "divided by the first method's; it is a tie if its interval includes 1."
)


@dataclass(frozen=True)
class Speed:
    """One method's training runs of a task by seed, and each seed's target loss."""

    method: str
    rows: Mapping[int, Row]
    targets: Mapping[int, float]

    @cached_property
    def step_s(self) -> Mapping[int, float]:
        """The step time of each seed, in seconds."""
        return {seed: row["step_s"] for seed, row in self.rows.items()}

    @cached_property
    def reached(self) -> Mapping[int, tuple[float, float]]:
        """The steps and seconds to the target loss, for the seeds that reach it."""
        if self.method in UNJUDGED:
            return {}
        found = {seed: reach(curve_of(row), self.targets[seed]) for seed, row in self.rows.items()}
        return {seed: point for seed, point in found.items() if point is not None}

    @property
    def has_reached(self) -> bool:
        """Whether all seeds reach the target loss."""
        return bool(self.reached) and len(self.reached) == len(self.rows)

    @property
    def time_s(self) -> Mapping[int, float]:
        """The seconds to the target loss, or nothing unless all seeds reach it."""
        return {seed: point[1] for seed, point in self.reached.items()} if self.has_reached else {}

    @property
    def accuracies(self) -> list[float]:
        """Each seed's final held-out accuracy."""
        return [row["accuracies"][-1] for row in self.rows.values()]

    def plans(self) -> str:
        """Return the given or chosen plans as text, each with its number of seeds."""
        counts = Counter(row["plan"] for row in self.rows.values() if row["plan"])
        return ", ".join(f"{plan} ({count} of {len(self.rows)} seeds)" for plan, count in counts.items())


@dataclass(frozen=True)
class Trained:
    """The training runs of all methods on one task and network."""

    speeds: Mapping[str, Speed]

    @property
    def judge(self) -> Speed:
        """The training runs of plain DDP."""
        return self.speeds[JUDGE]

    @property
    def problem(self) -> str:
        """The reason why the methods' times are invalid: plain DDP didn't learn, or seeds are too few."""
        goal = next(iter(self.judge.rows.values()))["goal"]
        if goal is None:
            return "no goal is set for this data, so it's unknown whether the models learned"
        learned = exact_trainings(JUDGE, self.judge.accuracies, Goal(**goal))
        if learned.problem:
            return f"did not learn: {learned.problem}"
        if learned.is_short:
            return f"too short: an interval needs {LEAST_SEEDS} seeds, got {len(learned.exact)}"
        return ""

    @property
    def ranking(self) -> list[Speed]:
        """The methods that reach the target loss with all seeds, fastest first."""
        found = [each for each in self.speeds.values() if each.has_reached]
        return sorted(found, key=lambda each: fmean(each.time_s.values()))

    def pairs(self) -> Iterator[tuple[Speed, Speed]]:
        """Yield the pairs of methods to compare, most important first."""
        ranking = self.ranking
        fixed = next((each.method for each in ranking if each.method in FIXED), "")
        gains = [(ATTACHED, other) for other in (HOOK, POWER_SGD, JUDGE)]
        wanted = [*gains, (fixed, ATTACHED), (PIPELINED, HOOK)]
        seen: set[frozenset[str]] = set()
        for pair in [*wanted, tuple(each.method for each in ranking[:2])]:
            if frozenset(pair) not in seen and len(pair) == 2 and all(name in self.speeds for name in pair):
                seen.add(frozenset(pair))
                yield self.speeds[pair[0]], self.speeds[pair[1]]


def trained(rows: Sequence[Row]) -> Trained:
    """Return the training runs in the rows of one task on one network."""
    targets = {row["seed"]: target_of(row) for row in rows if row["method"] == JUDGE}
    methods = dict.fromkeys(row["method"] for row in rows)
    by_name = {name: {row["seed"]: row for row in rows if row["method"] == name} for name in methods}
    return Trained({name: Speed(name, runs, targets) for name, runs in by_name.items()})


def target_of(judge: Row) -> float:
    """Return the target loss, the median of the last evaluations. A single evaluation varies too much."""
    return EQUAL * median(loss for _, _, loss in curve_of(judge)[-LAST:])


def curve_of(row: Row) -> list[tuple[float, float, float]]:
    """Return the step, seconds, and loss of every evaluation."""
    return [(step, seconds, loss_of(loss)) for step, seconds, loss in row["curve"]]


def ratio(times_s: Mapping[int, float], others_s: Mapping[int, float]) -> Ratio | None:
    """Return the other method's time over the first method's, or None without two common seeds."""
    if len(times_s) < 2 or times_s.keys() != others_s.keys():
        return None
    return Ratio.of(others_s[seed] / times_s[seed] for seed in times_s)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return tables per rate and task: the methods, and their comparisons."""
    parts: list[str | Table] = []
    for _, group in groupby(rows, key=place_of):
        of_task = list(group)
        task = trained(of_task)
        parts += [_title(of_task, task), ""]
        if task.problem:
            parts += [f"No time, speed, or ratio of {of_task[0]['task']} counts: {task.problem}.", ""]
            continue
        parts += [Table(COLUMNS, [_entries(each, task.judge) for each in task.speeds.values()]), ""]
        compared = [
            (_over(one, other), _times_in_words(one, other), _in_words(ratio(one.step_s, other.step_s)))
            for one, other in task.pairs()
        ]
        parts += [Table(COMPARISONS, compared), ""]
        plans = [f"{name}: {each.plans()}" for name, each in task.speeds.items() if each.plans()]
        parts += [f"Plans. {'; '.join(plans)}.", ""] if plans else []
    return [*parts, NOTE]


def summary(records: Mapping[str, Sequence[Row]], methods: Mapping[str, str]) -> Table:
    """Return one table of the tasks in ``records``: each method's times, and ``attach(model)``'s gains."""
    tasks = [trained(rows) for rows in records.values()]
    body = [[title, *(_step_and_time(task, name) for task in tasks)] for name, title in methods.items()]
    for other in filter(methods.__contains__, (JUDGE, HOOK, POWER_SGD)):
        entries = [_time_ratio(task, ATTACHED, other) for task in tasks]
        body.append([f"{methods[ATTACHED]} over {methods[other]}, time to loss", *entries])
    return Table((Column.of_text("ms per step, s to DDP's loss"), *map(Column, records)), body)


def _step_and_time(task: Trained, name: str) -> str:
    speed = task.speeds.get(name)
    if task.problem or speed is None:
        return task.problem.partition(":")[0] or "-"
    time = f"{figure(fmean(speed.time_s.values()))} s" if speed.has_reached else "not reached"
    return f"{figure(1e3 * fmean(speed.step_s.values()))} ms, {time}"


def _time_ratio(task: Trained, one: str, other: str) -> str:
    if task.problem or not {one, other} <= task.speeds.keys():
        return "-"
    return _times_in_words(task.speeds[one], task.speeds[other])


def _title(rows: Sequence[Row], task: Trained) -> str:
    first, seeds = rows[0], task.judge.rows
    title = (
        f"{first['task']} on {first['data']}, {first['hosts']} hosts at {first['rate']}, {len(seeds)} seeds"
    )
    if task.problem or ALONE not in task.speeds:
        return title
    shares = [1 - alone / task.judge.step_s[seed] for seed, alone in task.speeds[ALONE].step_s.items()]
    return f"{title}: communication takes {fmean(shares):.0%} of DDP's step"


def _entries(speed: Speed, judge: Speed) -> tuple[str, ...]:
    """Return the table entries of one method."""
    judged = speed.method not in UNJUDGED
    step = _with_interval([1e3 * each for each in speed.step_s.values()])
    accuracy = f"{100 * fmean(speed.accuracies):.1f}" if judged else ""
    if not speed.has_reached:
        count = f"{len(speed.reached)} of {len(speed.rows)} reach it" if judged else ""
        return speed.method, step, "-" if judged else "", "-" if judged else "", accuracy, count
    steps = f"{fmean(steps for steps, _ in speed.reached.values()):.0f}"
    over = None if speed is judge else ratio(speed.time_s, judge.time_s)
    time = _with_interval(list(speed.time_s.values()))
    return speed.method, step, steps, time, accuracy, "" if over is None else over.in_words()


def _with_interval(values: Sequence[float]) -> str:
    around = f" ± {figure(half_width(values))}" if len(values) > 1 else ""
    return f"{figure(fmean(values))}{around}"


def _over(one: Speed, other: Speed) -> str:
    return f"{one.method}{', the best fixed plan,' if one.method in FIXED else ''} over {other.method}"


def _times_in_words(one: Speed, other: Speed) -> str:
    """Return the ratio of the times to the loss, or the methods that miss the loss with any seed."""
    missing = " and ".join(each.method for each in (one, other) if not each.has_reached)
    return f"not reached by {missing}" if missing else _in_words(ratio(one.time_s, other.time_s))


def _in_words(found: Ratio | None) -> str:
    return "-" if found is None else found.in_words()


def place_of(row: Row) -> tuple[str, str]:
    """Return the rate and the task that identify the table of a row."""
    return row["rate"], row["task"]
