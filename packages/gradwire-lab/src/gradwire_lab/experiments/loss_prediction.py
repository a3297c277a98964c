"""The errors of predicted times to a loss, and the extra time that plans chosen by prediction cost.

Each evaluation in the last part of a run is compared with the step at which exact DDP had the same loss: the
mean ratio of steps, minus 1, is the share of extra steps. This share is predicted from the gradients' noise
at the end of the exact run. Step times are predicted from the measured link, hosts, codecs, and computation.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from gradwire.codecs import parse
from gradwire.deferred import torch
from gradwire.plan import Plan
from gradwire.tables import Column, Table, figure
from gradwire_lab.columns import Columns, ms_of, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import Cell, CheckedOptions, Experiment, Row, cells_of, option
from gradwire_lab.experiments.hosts import check_networks, measured_by
from gradwire_lab.experiments.hosts.training import flat
from gradwire_lab.experiments.speeds import curve_of
from gradwire_lab.job.record import reach
from gradwire_lab.testbed.registry import KEPT_MEMORY

if TYPE_CHECKING:
    from gradwire.planner.predict import Predictor
    from gradwire_lab.experiments.hosts.ranks import Ranks
    from gradwire_lab.experiments.tasks import TrainingTask


TASKS = ("mlp", "cnn", "gpt")
CODECS = ("identity", "quantize:8", "ecsq:0.5", "quantize:4", "ecsq:2")
PIPELINES = (1, 2)
LONGER = 1.3
"""The number of exact DDP's steps relative to the other runs' steps."""
GOOD, CLOSE = 0.05, 0.15
"""The limits on a good choice's extra time, and on the median error of predictions."""
COLUMNS: Columns[Row] = (
    (Column.of_text("codec"), text_of("codec")),
    (Column("K"), text_of("pipeline")),
    (Column("step", "ms"), ms_of("step_s")),
    (Column("predicted", "ms"), ms_of("predicted_step_s")),
    (Column("extra", "%"), lambda row: f"{100 * row['extra']:.1f}"),
    (Column("predicted", "%"), lambda row: f"{100 * row['predicted_extra']:.1f}"),
    (Column("to loss", "s"), lambda row: figure(row["to_loss_s"])),
    (Column("predicted", "s"), lambda row: figure(row["predicted_to_loss_s"])),
    (Column("error", "%"), lambda row: f"{100 * error(row):+.1f}"),
)


@dataclass(frozen=True)
class LossPredictionOptions(CheckedOptions):
    """The options: tasks and codecs for training, and networks."""

    hosts: int = option(4, "number of hosts")
    rates: tuple[str, ...] = option(("50mbit",), "link rates to compare")
    tasks: tuple[str, ...] = option(TASKS, "tasks to train", known=TASKS)
    codecs: tuple[str, ...] = option(
        CODECS,
        "codecs, separated by ';'",
        shown=";".join(CODECS),
        read=lambda text: tuple(dict.fromkeys(text.split(";"))),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(self.hosts, rate) for rate in self.rates])
        for spec in self.codecs:
            parse(spec)


def cells(options: LossPredictionOptions) -> list[Cell]:
    """Return a cell for each rate, task, codec, and pipeline. The exact codec, the reference, is first."""
    codecs, common = dict.fromkeys((CODECS[0], *options.codecs)), {"hosts": options.hosts}
    return cells_of(common, rate=options.rates, task=options.tasks, codec=codecs, pipeline=PIPELINES)


def plan_of(cell: Cell) -> Plan:
    """Return the plan of a cell."""
    return Plan(parse(cell["codec"]), pipeline=cell["pipeline"])


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Train one task as one of its ranks, and always run the exact training first, as the reference."""
    from gradwire_lab.experiments.methods import ComparedMethod, Pipelined, attached, train

    def new_task() -> TrainingTask:
        return task_of(cells[0]["task"], ranks.rank, ranks.world)

    def method(task: TrainingTask, plan: Plan) -> ComparedMethod:
        return attached(task, plan) if plan.pipeline == 1 else Pipelined(task, plan)

    exact, judged = new_task(), Plan()
    steps = exact.block * exact.blocks
    exact = replace(exact, blocks=round(LONGER * exact.blocks))  # to reach faster runs' losses
    found = train(ranks, method(exact, judged), exact, None)
    predictor = _predictor(ranks, new_task(), exact, [cell["codec"] for cell in cells])
    for cell in cells:
        plan, task = plan_of(cell), new_task()
        run = found if plan == judged else train(ranks, method(task, plan), task, None)
        if predictor is None:
            continue
        share = 0.0 if plan == judged else extra(_losses_of(found), _losses_of(run))
        expected = predictor.predict(plan)
        figures = {
            "exact_steps": steps,
            "step_s": run["step_s"],
            "extra": share,
            "to_loss_s": steps * (1 + share) * run["step_s"],
            "predicted_step_s": expected.step_s,
            "predicted_extra": expected.extra.share,
            "predicted_deviation": expected.extra.deviation,
            "predicted_to_loss_s": steps * expected.to_loss_s,
        }
        ranks.report(cell, figures)


def _losses_of(run: Row) -> list[float]:
    return [loss for _, _, loss in curve_of(run)]


def task_of(name: str, rank: int, world: int) -> TrainingTask:
    """Return one of ``TASKS``, small enough for hosts on two cores, with a loss that falls until the end."""
    from gradwire_lab.experiments.tasks import SEED, Files, mnist_mlp, text_task

    if name == "gpt":
        gpt = text_task(None, width=64, layers=3, heads=4, batch=2, rank=rank)
        return replace(gpt, block=10, blocks=12)
    mlp = replace(
        mnist_mlp(rank, world, Files()),
        block=15,
        blocks=10,
        optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.004, momentum=0.9),
    )
    if name == "mlp":
        return mlp
    nn = torch.nn
    height, width = mlp.held_out[0].shape[2:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        first, second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        ends = nn.Linear(64 * -(-height // 2) * -(-width // 2), 128), nn.ReLU(), nn.Linear(128, 10)
        cnn = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), *ends)
    return replace(mlp, model=cnn, optimizer=lambda net: torch.optim.AdamW(net.parameters(), lr=2e-4))


def _predictor(
    ranks: Ranks, task: TrainingTask, trained: TrainingTask, codecs: Sequence[str]
) -> Predictor | None:
    """Measure on all ranks, with gradients at trained weights. Return the predictor on rank 0, else None."""
    from gradwire.planner.candidates import Workload
    from gradwire.planner.exchange_times import Family
    from gradwire.planner.loss import StepsToLoss, noise_scale
    from gradwire.planner.predict import Predictor
    from gradwire_lab.experiments.methods import computation, computed_s

    forward_s, backward_s, update_s, _ = computation(task)
    update_s = max(update_s, max(ranks.gather(computed_s(task))) - forward_s - backward_s)
    loss = trained.loss(trained.model, next(trained.batches))
    gradients = ranks.gather(flat(torch.autograd.grad(loss, list(trained.model.parameters()))))
    environment = ranks.environment(list(dict.fromkeys(("identity", *codecs))), samples=gradients)
    if environment is None:
        return None
    counts = tuple(each.numel() for each in task.model.parameters())
    to_loss = StepsToLoss(environment.codecs, noise_scale(gradients))
    workload = Workload(counts, forward_s, backward_s, update_s)
    return Predictor(workload, ranks.world, Family(environment), to_loss)


def error(row: Row) -> float:
    """Return the prediction's error as a share of the measured time to the loss."""
    return float(row["predicted_to_loss_s"] / row["to_loss_s"] - 1)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a table per rate and task, and a summary of the errors of predictions and choices."""
    found: list[str | Table] = []
    losses: list[float] = []
    for (rate, task), group in groupby(rows, key=lambda row: (row["rate"], row["task"])):
        members = list(group)
        hosts, steps = members[0]["hosts"], members[0]["exact_steps"]
        title = f"{task}, {hosts} hosts at {rate}: exact DDP needs {steps:.0f} steps"
        found += [title, "", table_of(COLUMNS, members), ""]
        losses += _losses(members)
    return [*found, *_verdict([abs(error(row)) for row in rows], losses)]


def _losses(rows: Sequence[Row]) -> list[float]:
    """Return the extra times of the choices, among synchronous plans and among all plans."""
    found = []
    for most in PIPELINES:
        allowed = [row for row in rows if row["pipeline"] <= most]
        if allowed:
            chosen = min(allowed, key=lambda row: row["predicted_to_loss_s"])
            best_s = min(row["to_loss_s"] for row in allowed)
            found.append(float(chosen["to_loss_s"] / best_s - 1))
    return found


def _verdict(errors: Sequence[float], losses: Sequence[float]) -> list[str | Table]:
    if not errors:
        return []
    good, median = sum(loss <= GOOD for loss in losses), statistics.median(errors)
    return [
        f"Error of {len(errors)} predicted times to loss: median {100 * median:.1f} % (goal: "
        f"{100 * CLOSE:.0f} %), largest {100 * max(errors):.1f} %. {good} of {len(losses)} choices by "
        f"prediction are within {100 * GOOD:.0f} % of the best plan."
    ]


EXPERIMENT = Experiment(
    name="loss-prediction",
    version=2,
    question="how close are predicted times to a loss, and the choices?",
    answer=Answer("error", ("codec", "K")),
    options=LossPredictionOptions,
    cells=cells,
    run=measured_by(__name__, variables=KEPT_MEMORY, apart=("rate", "task")),
    table=table,
)


# The extra steps that a training run needs to reach the losses of another run, from evaluations of both runs.

JUDGED = 0.4
"""The share of a run, at its end, whose evaluations are compared."""


def extra(exact: Sequence[float], losses: Sequence[float]) -> float:
    """Return the share of extra steps: the mean ratio of steps to exact steps at equal losses, minus 1."""
    smooth = _smoothed(exact)
    first = int(len(losses) * (1 - JUDGED))
    judged = [*enumerate(_smoothed(losses), start=1)][first:]
    return statistics.fmean(steps / _reached(smooth, loss) for steps, loss in judged) - 1


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Return means of each loss and up to two neighbours on either side. The window is always symmetric."""
    found = []
    for place in range(len(losses)):
        reach = min(2, place, len(losses) - 1 - place)
        found.append(statistics.fmean(losses[place - reach : place + reach + 1]))
    return found


def _reached(curve: Sequence[float], loss: float) -> float:
    """Return the number of evaluations, including a fraction, after which a curve falls to ``loss``."""
    point = reach([(float(place), 0.0, each) for place, each in enumerate(curve, start=1)], loss)
    return float(len(curve)) if point is None else point[0]
