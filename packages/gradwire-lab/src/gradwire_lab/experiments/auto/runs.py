"""Train tasks on a testbed's hosts: with DDP, its bf16 hook, an automatic plan, or a fixed plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.attached import Attached
from gradwire.costs import ExchangeCost
from gradwire.plan import Plan
from gradwire_lab.experiments.a2dtwp.images import PIXELS, SIDE, read_images
from gradwire_lab.experiments.auto import FIXED
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts.ranks import Ranks
from gradwire_lab.experiments.tasks import Batch, TrainingTask, text_batches, text_task
from gradwire_lab.job.on_ddp import bf16_hook

# Six tasks that differ in model, optimizer, and scale of the gradients.

STEPS = 240
HELD_OUT = 1000
"""The number of held-out images, or rows of the table, on which the loss is computed."""
COLUMNS, TARGETS = 16, 4


def image_mlp(rank: int, seed: int, data: Path | None, _text: Path | None) -> TrainingTask:
    """Return the task of a 3072-256-256-C MLP on images, with SGD and momentum."""

    def model(classes: int) -> nn.Module:
        hidden = nn.Linear(PIXELS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, classes))

    return _on_images("MLP", model, partial(_sgd, rate=0.02), rank, seed, data)


def image_cnn(rank: int, seed: int, data: Path | None, _text: Path | None) -> TrainingTask:
    """Return the task of a small CNN on images, with SGD and momentum."""

    def model(classes: int) -> nn.Module:
        first = nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU()
        second = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        ends = nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, classes)
        return nn.Sequential(*first, *second, *ends)

    return _on_images("CNN", model, partial(_sgd, rate=0.02), rank, seed, data)


def batch_norm(rank: int, seed: int, data: Path | None, _text: Path | None) -> TrainingTask:
    """Return the task of a CNN with batch normalization on images, with AdamW."""

    def model(classes: int) -> nn.Module:
        layers = list[nn.Module]()
        for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
            conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (SIDE // 8) ** 2, classes))

    return _on_images("batch norm", model, partial(_adamw, rate=2e-3), rank, seed, data)


def gpt(rank: int, seed: int, _data: Path | None, text: Path | None) -> TrainingTask:
    """Return the task of a GPT of 0.2 million weights on the bytes of a text, with AdamW."""
    task = text_task(text, width=64, layers=3, heads=4, batch=2, rank=_stream(rank, seed))
    return replace(task, block=STEPS, blocks=1)


def lstm(rank: int, seed: int, _data: Path | None, text: Path | None) -> TrainingTask:
    """Return the task of an LSTM of 0.2 million weights on the bytes of a text, with AdamW."""
    training, held_out = text_batches(text, 4, _stream(rank, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Lstm(128)
    return TrainingTask("LSTM", model, partial(_adamw, rate=4e-3), training, held_out, STEPS, 1)


def table(rank: int, seed: int, _data: Path | None, _text: Path | None) -> TrainingTask:
    """Return the task of a small MLP on rows of a table, with AdamW."""

    def batches(source: torch.Generator) -> Iterator[Batch]:
        while True:
            yield draw_rows(32, source)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.Tanh(), nn.Linear(64, TARGETS))
    own = torch.Generator().manual_seed(_stream(rank, seed))
    held_out = draw_rows(HELD_OUT, torch.Generator().manual_seed(4))
    judge = nn.functional.mse_loss
    return TrainingTask("table", model, partial(_adamw, rate=1e-2), batches(own), held_out, STEPS, 1, judge)


def draw_rows(count: int, source: torch.Generator) -> Batch:
    """Draw rows of columns with scales from 0.01 to 10, and noisy targets from a small network."""
    hidden, out = _teacher()
    x = torch.randn(count, COLUMNS, generator=source)
    y = (x @ hidden).tanh() @ out + 0.1 * torch.randn(count, TARGETS, generator=source)
    return x * torch.logspace(-2, 1, COLUMNS), y


@cache
def _teacher() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden, out = (torch.randn(size, generator=generator) for size in ((COLUMNS, 24), (24, TARGETS)))
    return hidden / 4, out / 5


TASKS: dict[str, Callable[[int, int, Path | None, Path | None], TrainingTask]] = {
    "mlp": image_mlp,
    "cnn": image_cnn,
    "batch-norm": batch_norm,
    "gpt": gpt,
    "lstm": lstm,
    "table": table,
}


class Lstm(nn.Module):
    """An LSTM over bytes (Hochreiter and Schmidhuber, 1997)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_byte = nn.Embedding(256, width // 2)
        self.layer = nn.LSTM(width // 2, width, batch_first=True)
        self.out = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next byte at every position."""
        logits: torch.Tensor = self.out(self.layer(self.of_byte(text))[0])
        return logits


def _stream(rank: int, seed: int) -> int:
    """Return the random seed of a rank's batches."""
    return 100 * seed + rank


def _sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def _adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


def _on_images(
    name: str,
    model: Callable[[int], nn.Module],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    rank: int,
    seed: int,
    data: Path | None,
) -> TrainingTask:
    images = read_images(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model(images.classes)
    (held_out,) = images.validation(HELD_OUT, HELD_OUT)
    return TrainingTask(name, made, optimizer, images.batches(16, _stream(rank, seed)), held_out, STEPS, 1)


TIMEOUT_S = 120.0


def measure(
    ranks: Ranks, cells: Sequence[Cell], data_dir: str | None = None, text: str | None = None
) -> None:
    """Train each cell's task with the cell's method."""
    folder, file = (None if name is None else Path(name) for name in (data_dir, text))
    for cell in cells:
        task = TASKS[cell["task"]](ranks.rank, cell["seed"], folder, file)
        method = cell["method"]
        ranks.report(cell, train(task, METHODS[method] if method in METHODS else partial(_fixed, method)))


def train(task: TrainingTask, register: Callable[[DistributedDataParallel], object]) -> Cell:
    """Train with a learning rate that falls to zero; return the held-out loss, step times, and bytes sent."""
    model = DistributedDataParallel(task.model)
    attached = register(model)
    optimizer, steps = task.optimizer(model), task.block * task.blocks
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    ends_s, half = [time.monotonic()], ExchangeCost()
    for step in range(steps):
        if isinstance(attached, Attached) and step == steps // 2:
            half = attached.ledger.summary().total.cost
        optimizer.zero_grad()
        task.loss(model, next(task.batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        falling.step()
        ends_s.append(time.monotonic())
    dist.barrier()
    figures: dict[str, object] = {
        "loss": task.held_out_loss(model.module),
        "step_s": (ends_s[-1] - ends_s[0]) / steps,
        "later_s": median(end - begin for begin, end in pairwise(ends_s[steps // 2 :])),
    }
    if isinstance(attached, Attached):
        plan, cost = attached.plan, attached.ledger.summary().total.cost
        exempt = "" if not plan.codecs else f", {len(plan.codecs)} rules"
        figures |= {"ratio": cost.ratio, "plan": f"{plan.codec} {plan.algorithm}{exempt}"}
        figures |= {"raw_nbytes": cost.raw_nbytes, "wire_nbytes": cost.wire_nbytes}
        figures["later_ratio"] = (cost - half).ratio
        attached.close()
    return figures


METHODS: dict[str, Callable[[DistributedDataParallel], object]] = {
    "DDP": lambda _: None,
    "bf16 hook": bf16_hook,
    "auto": lambda model: gradwire.attach(model, "auto", timeout_s=TIMEOUT_S),
}


def _fixed(method: str, model: DistributedDataParallel) -> Attached:
    codec, _, algorithm = method.partition(FIXED)
    return gradwire.attach(model, Plan.of(codec, algorithm=algorithm, residual=False), timeout_s=TIMEOUT_S)
