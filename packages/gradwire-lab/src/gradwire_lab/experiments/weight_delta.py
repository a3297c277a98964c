"""The bits per weight of a lossless update of a bfloat16 replica while a GPT is fine-tuned with AdamW."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from gradwire.deferred import torch
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.errors import ExchangeError, SpecError
from gradwire.tables import Column, Table
from gradwire_lab.columns import Columns, table_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    FILE,
    Cell,
    CheckedOptions,
    Experiment,
    Report,
    Row,
    cells_of,
    option,
)
from gradwire_lab.experiments.hosts.training import flat

if TYPE_CHECKING:  # these modules import torch, which takes seconds
    from gradwire_lab.experiments.tasks import TrainingTask

BF16_BITS = 16
COLUMNS: Columns[Row] = (
    (Column("lr"), lambda row: f"{row['lr']:g}"),
    (Column("moved", "%"), lambda row: f"{100 * row['moved']:.1f}"),
    (Column("bits"), lambda row: f"{row['bits']:.2f}"),
    (Column("x BF16"), lambda row: f"{BF16_BITS / row['bits']:.1f}x"),
    (Column("2-bit bits"), lambda row: f"{row['two_bit_bits']:.2f}"),
    (Column("x BF16"), lambda row: f"{BF16_BITS / row['two_bit_bits']:.1f}x"),
    (Column("full copy"), lambda row: f"{row['full_bits']:.1f}"),
    (Column("loss before"), lambda row: f"{row['loss_before']:.3f}"),
    (Column("after"), lambda row: f"{row['loss_after']:.3f}"),
)
NOTE = (
    "Moved: weights whose bfloat16 bits changed in a step. Bits: bits of a delta per weight. x BF16: "
    "reduction from 16 bits. 2-bit: without the entropy coder. Full copy: bits of the first payload. All "
    "are means over the measured steps. After each step, the replica has the bits of the rounded weights."
)


def read_rates(text: str) -> tuple[float, ...]:
    """Parse a comma-separated list of learning rates. Raises ``SpecError``."""
    try:
        return tuple(dict.fromkeys(map(float, text.split(","))))
    except ValueError:
        raise SpecError(
            f"expected learning rates such as 3e-5,1e-4, got {text!r}; separate numbers by commas"
        ) from None


def check_rates(rates: Sequence[float]) -> None:
    """Raise ``SpecError`` unless there is at least one learning rate and all rates are between 0 and 1."""
    if not rates or any(not 0 < rate < 1 for rate in rates):
        raise SpecError(f"expected learning rates between 0 and 1, got {list(rates)}; pass e.g. 3e-5")


@dataclass(frozen=True)
class WeightDeltaOptions(CheckedOptions):
    """The options: text, learning rates, and the numbers of training, warm-up, and measured steps."""

    text: str | None = option(
        None, "training text", shown="Python's language reference", value=FILE, read=str
    )
    rates: tuple[float, ...] = option(
        (3e-6, 3e-5, 1e-4, 1e-3), "learning rates", name="--lrs", read=read_rates
    )
    training: int = option(300, "pretraining steps", least=1)
    warm: int = option(40, "steps before the measured steps, per learning rate", name="--warm-up", least=1)
    measured: int = option(20, "measured steps, per learning rate", name="--steps", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self.rates)


def cells(options: WeightDeltaOptions) -> list[Cell]:
    """Return a cell for each learning rate."""
    return cells_of(lr=options.rates)


def run(options: WeightDeltaOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
    """Pretrain once, then fine-tune a copy for each cell."""
    task, model = pretrained(options.text, options.training)
    for cell in cells:
        report({**cell, **_fine_tune(task, copy.deepcopy(model), options, cell["lr"])})


def pretrained(file: str | None, steps: int) -> tuple[TrainingTask, torch.nn.Module]:
    """Return the fine-tuning task on a text's second half, and a GPT pretrained on its first half."""
    from gradwire_lab.experiments.tasks import text_task

    text = None if file is None else Path(file)
    first, second = (text_task(text, width=128, layers=4, heads=4, batch=4, half=half) for half in (0, 1))
    _train(first, first.model, first.optimizer(first.model), steps)
    return second, first.model


def _fine_tune(
    task: TrainingTask, model: torch.nn.Module, options: WeightDeltaOptions, rate: float
) -> dict[str, float]:
    """Return the figures of one learning rate, as means over the measured steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    before = task.held_out_loss(model)
    _train(task, model, optimizer, options.warm)
    masters = _flat(model)
    encoder, two_bit = DeltaEncoder(masters), DeltaEncoder(masters, entropy=False)
    decoder, replica = DeltaDecoder(), torch.empty(masters.numel(), dtype=torch.bfloat16)
    full = encoder.encode(masters, 0)
    decoder.apply(full, replica)
    two_bit.encode(masters, 0)
    moved, nbytes, two_bit_nbytes = [], [], []
    for step in range(1, options.measured + 1):
        _train(task, model, optimizer, 1)
        masters, held = _flat(model), replica.clone()
        payload = encoder.encode(masters, step, checked=step == options.measured)
        decoder.apply(payload, replica)
        if not torch.equal(replica.view(torch.int16), masters.bfloat16().view(torch.int16)):
            raise ExchangeError(
                "expected a replica with the bits of the rounded weights, got different bits after step "
                f"{step} at the learning rate {rate:g}; please report this bug"
            )
        moved.append(float((replica.view(torch.int16) != held.view(torch.int16)).float().mean()))
        nbytes.append(payload.numel())
        two_bit_nbytes.append(two_bit.encode(masters, step).numel())
    per_weight = 8 / masters.numel()
    return {
        "moved": fmean(moved),
        "bits": fmean(nbytes) * per_weight,
        "two_bit_bits": fmean(two_bit_nbytes) * per_weight,
        "full_bits": full.numel() * per_weight,
        "loss_before": before,
        "loss_after": task.held_out_loss(model),
    }


def _train(task: TrainingTask, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for batch in islice(task.batches, steps):
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model, batch))
        optimizer.step()


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return flat(each.detach() for each in model.parameters())


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a row for each learning rate."""
    title = "lossless deltas of a GPT's weights, fine-tuned with AdamW"
    return [title, "", table_of(COLUMNS, rows), "", NOTE]


EXPERIMENT = Experiment(
    name="weight-delta",
    question="how few bits carry a change of weights without loss?",
    answer=Answer("bits", ("lr",)),
    options=WeightDeltaOptions,
    cells=cells,
    run=run,
    table=table,
)
