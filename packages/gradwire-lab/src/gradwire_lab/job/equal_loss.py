"""Time to equal loss: how long each run trains until its loss is the one at which the baseline ends.

The loss to reach is the median of the baseline's last evaluations on held-out data. A run reaches it where
its own held-out losses, joined by straight lines, first come down to it. The baseline is judged alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gradwire.autotune.settings import NAME as AUTO
from gradwire.units import counted
from gradwire_lab.job.events import RunResult
from gradwire_lab.job.runs import D_SYNC, DDP, Run

LAST = 3
"""So many evaluations, the baseline's last, say where it ends."""
BASELINES = (DDP, D_SYNC)
"""What runs are compared with: the first of these that is among them."""
_ALIKE = 0.05
"""Times that differ by a smaller share print as 1.0x."""
MODEL = "25.6M"
"""A size of a model to put one's own in its place: ResNet-50's."""


@dataclass(frozen=True)
class EqualLoss:
    """The loss to reach, and for each run the steps and seconds of training to it; None: not reached."""

    baseline: RunResult
    target: float
    reached: dict[Run, tuple[float, float] | None]

    def seconds(self, run: Run) -> float | None:
        """Return the seconds of training to the loss."""
        point = self.reached[run]
        return None if point is None else point[1]

    def gain(self, run: Run) -> float | None:
        """Return how many times less time than the baseline a run needs to the loss."""
        own, others = self.seconds(run), self.seconds(self.baseline.run)
        return others / own if own and others else None


def equal_loss(results: Sequence[RunResult]) -> EqualLoss | None:
    """Return who reaches the baseline's loss when; None without a baseline or with too few evaluations."""
    by_run = {result.run: result for result in results}
    base = baseline_of(results)
    baseline = None if base is None else by_run[base]
    if baseline is None or len(results) < 2 or len(baseline.epochs) < LAST or baseline.diverged:
        return None
    target = median(epoch.held_out_loss for epoch in baseline.epochs[-LAST:])
    curves = {
        run: [(e.step, e.train_s, e.held_out_loss) for e in each.epochs] for run, each in by_run.items()
    }
    return EqualLoss(baseline, target, {run: reach(curve, target) for run, curve in curves.items()})


def baseline_of(results: Sequence[RunResult]) -> Run | None:
    """Return the run that the others are compared with; None without one."""
    runs = [result.run for result in results]
    return next((run for run in BASELINES if run in runs), None)


def too_short(results: Sequence[RunResult]) -> list[str]:
    """Return sentences about what these runs were too short for: times to equal loss, and plans to choose."""
    base = baseline_of(results)
    evaluations = min((len(each.epochs) for each in results if each.run == base), default=LAST)
    said = []
    if base is not None and len(results) > 1 and evaluations < LAST:
        said.append(
            f"{base.label} was evaluated {counted(evaluations, 'time')}, but times to the same loss need "
            f"{LAST}; train for more --epochs, or lower --evaluate-every"
        )
    said += [
        f"{each.run.label} was too short, with {counted(each.steps, 'step')}, to choose a plan; "
        "train for more --epochs"
        for each in results
        if each.run.codec == AUTO and not each.decided
    ]
    return said


def reach(curve: Sequence[tuple[float, float, float]], target: float) -> tuple[float, float] | None:
    """Return where a curve first comes down to a loss, between two evaluations on a straight line.

    ``curve`` has the steps, seconds and loss of each evaluation. None is returned for one that stays above.
    """
    before = (0.0, 0.0, float("inf"))
    for point in curve:
        if point[2] <= target:
            above = before[2] - target
            share = above / (before[2] - point[2]) if above < float("inf") else 1.0
            return before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])
        before = point
    return None


def prediction(hosts: int, rate: str) -> str:
    """Return the command that predicts the comparison for another model."""
    return f"gradwire plan --model {MODEL} --hosts {hosts} --rate {rate}"


def verdict(equal: EqualLoss) -> str:
    """Return the comparison in words."""
    own = [(gain, run) for run in equal.reached if _is_own(run) and (gain := equal.gain(run)) is not None]
    base = equal.baseline.run.label
    if not own:
        return f"No run of gradwire reached the loss at which {base} ends"
    gain, best = max(own, key=lambda each: each[0])
    times = f"{gain:.1f}x less time" if gain >= 1 else f"{1 / gain:.1f}x more time"
    times = f"{times} to the same loss than" if abs(gain - 1) >= _ALIKE else "as long to the same loss as"
    return f"gradwire ({best.label}) takes {times} {base}"


def _is_own(run: Run) -> bool:
    return run.method in ("attach", "sharded", "pipe") or (run.method == "sync" and run not in BASELINES)
