"""Fine-tuning a GPT whose weights reach the device as lossless deltas: the time to equal loss.

All policies of a learning rate train side by side, on a simulated device with the links of ``a2dtwp``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import median
from typing import TYPE_CHECKING

from gradwire.deferred import torch
from gradwire.tables import Column, Table, figure
from gradwire_lab.experiments import weight_delta
from gradwire_lab.experiments.a2dtwp.measured import figure_of, gain, last_error, nothing_to_save
from gradwire_lab.experiments.a2dtwp.options import BF16, DELTAS, FP32, SYSTEMS, UNLIMITED
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.claim import RATIO, Claim, at_least, claims_parts
from gradwire_lab.experiments.experiment import (
    FILE,
    Cell,
    CheckedOptions,
    Experiment,
    Reporter,
    Row,
    cells_of,
    option,
)
from gradwire_lab.experiments.hosts.training import one_thread

if TYPE_CHECKING:  # these modules import torch, which takes seconds
    from gradwire_lab.experiments.a2dtwp.trainee import Learner
    from gradwire_lab.experiments.tasks import TrainingTask

CUTTING = ("static:8", "static:16", "static:24")
POLICIES = (FP32, BF16, *CUTTING, *DELTAS)
DELTA = DELTAS[0]
RATES = (3e-6, 3e-5, 1e-4)
WANTED = ((3e-5, 10.0), (1e-4, 6.0))
"""The upper ends of learning-rate ranges, and the byte reduction over bfloat16 required in each range."""
MONITORED, EVERY = 10, 10
"""The numbers of batches whose forward and backward are timed, and of batches between evaluations."""
TIMES = ("transfer", "pack", "decode", "batch")
COLUMNS = (
    Column("lr"),
    Column.of_text("policy"),
    *map(Column, ("bits", "x BF16")),
    *(Column(name, "ms") for name in TIMES),
    Column("loss"),
    Column("saved", "%"),
)
NOTE = (
    "Bits: sent per weight and batch, after the first copy. x BF16: reduction of bytes. Packing and "
    "decoding run in parallel with other work, in separate threads. Loss: held-out loss at the end. "
    "Saved: share of bf16's time to equal loss, which is the larger of the two policies' final losses."
)


@dataclass(frozen=True)
class FineTuningOptions(CheckedOptions):
    """The options: text, learning rates, links, policies, and the batches of pretraining and fine-tuning."""

    text: str | None = option(
        None, "training text", shown="Python's language reference", value=FILE, read=str
    )
    rates: tuple[float, ...] = option(RATES, "learning rates", name="--lrs", read=weight_delta.read_rates)
    systems: tuple[str, ...] = option(
        tuple(SYSTEMS), "systems whose links are simulated", name="--system", known=SYSTEMS
    )
    policies: tuple[str, ...] = option(POLICIES, "policies for sending weights", known=POLICIES)
    training: int = option(300, "pretraining steps", least=1)
    batches: int = option(60, "batches of each run", least=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        weight_delta.check_rates(self.rates)


def cells(options: FineTuningOptions) -> list[Cell]:
    """Return a cell for each learning rate and policy."""
    return cells_of(lr=options.rates, policy=options.policies)


def run(options: FineTuningOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    """Pretrain once, then fine-tune a copy for each cell."""
    from gradwire_lab.experiments.a2dtwp.trainee import Trainee, policy_named, train_side_by_side

    with one_thread():
        report.say(f"{options.training} pretraining batches")
        task, model = weight_delta.pretrained(options.text, options.training)
        batches = [*islice(task.batches, options.batches + 1)]
        first = Trainee(_learner(task, model, RATES[0]), policy_named(FP32), options.systems[:1])
        with closing(first):
            for _ in train_side_by_side([first], batches[: MONITORED + 1], 0.001, MONITORED):
                compute_s = median(first.compute_s(options.systems[0]))
        for rate, group in groupby(cells, key=lambda cell: float(cell["lr"])):
            with ExitStack() as stack:
                trainees = {}
                for name in (cell["policy"] for cell in group):
                    trainees[name] = Trainee(_learner(task, model, rate), policy_named(name), options.systems)
                    stack.callback(trainees[name].close)
                for number in train_side_by_side([*trainees.values()], batches, compute_s, EVERY):
                    report.say(f"{rate:g}: {number} of {options.batches} batches")
                for policy, trainee in trainees.items():
                    report({"lr": rate, "policy": policy, **trainee.figures(), "compute_s": compute_s})


def _learner(task: TrainingTask, model: torch.nn.Module, rate: float) -> Learner:
    from gradwire_lab.experiments.a2dtwp.trainee import Learner

    masters = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(masters.parameters(), lr=rate, fused=True)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return Learner(
        masters, optimizer, steady, task.loss, lambda model: float(task.loss(model, task.held_out))
    )


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a table per link, and the claims."""
    by_rate: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_rate.setdefault(f"{row['lr']:g}", {})[row["policy"]] = row
    systems = [name for name in SYSTEMS if name in rows[0]["cycles"]]
    parts: list[str | Table] = []
    for system in systems:
        count = rows[0]["parameters"] / 1e6
        title = f"a GPT of {count:.2f} M weights, fine-tuned on the link of {system}"
        parts += [title, "", Table(COLUMNS, [*_lines(by_rate, system)]), ""]
    judged = [each for system in systems if system != UNLIMITED for each in claims(by_rate, system)]
    return [*parts, *claims_parts(judged, [*by_rate]), NOTE]


def _lines(by_rate: Mapping[str, Mapping[str, Row]], system: str) -> Iterator[tuple[str, ...]]:
    for rate, own in by_rate.items():
        for name, row in own.items():
            saved = saving(own, name, BF16, system) if BF16 in own else None
            yield (
                rate,
                name,
                figure(8 * figure_of(row, system, "sent_nbytes") / row["parameters"]),
                f"{fewer_bytes(own, name, system):.1f}x" if BF16 in own else "-",
                *(figure(1e3 * figure_of(row, system, f"{each}_s")) for each in TIMES),
                f"{last_error(row):.4f}",
                "-" if saved is None else f"{100 * saved:.1f}",
            )


def fewer_bytes(rows: Mapping[str, Row], policy: str, system: str) -> float:
    """Return the ratio of bfloat16's bytes to the bytes that a policy sends."""
    return figure_of(rows[BF16], system, "sent_nbytes") / figure_of(rows[policy], system, "sent_nbytes")


def saving(rows: Mapping[str, Row], policy: str, other: str, system: str) -> float | None:
    """Return the share of the time of ``other`` to the common loss that ``policy`` saves."""
    return gain(rows[policy], rows[other], system, max(last_error(rows[policy]), last_error(rows[other])))


def claims(by_rate: Mapping[str, Mapping[str, Row]], system: str) -> Iterator[Claim]:
    """Yield the claims about deltas on one system's link. ``by_rate`` has rows by rate and policy."""
    trained = set.intersection(*(set(rows) for rows in by_rate.values()))
    if not {DELTA, BF16} <= trained:
        return
    least = 0.0
    for most, wanted in WANTED:
        judged = {
            rate: fewer_bytes(rows, DELTA, system)
            for rate, rows in by_rate.items()
            if least < float(rate) <= most
        }
        if judged:
            text = f"bytes, bf16 over delta, lr to {most:g}"
            yield Claim(text, judged, at_least(wanted), system, of_each=True, unit=RATIO)
        least = most
    for other in (BF16, FP32, *CUTTING):
        if other in trained:
            saved = {rate: saving(rows, DELTA, other, system) for rate, rows in by_rate.items()}
            text = f"time saved by delta, compared with {other}"
            reason = nothing_to_save([rows[other] for rows in by_rate.values()], system)
            yield Claim(text, saved, at_least(0.0), system, of_each=True, otherwise=reason)


EXPERIMENT = Experiment(
    name="fine-tuning",
    question="how much time do lossless deltas save in a fine-tuning?",
    answer=Answer("saved", ("policy", "lr")),
    options=FineTuningOptions,
    cells=cells,
    run=run,
    table=table,
)
