"""Six trainings that differ in model, optimizer, and scale of the gradients, from any seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

from gradwire.experiments.a2dtwp.images import PIXELS, SIDE, read_images
from gradwire.experiments.training.tasks import Batch, Task, text_batches, text_task

STEPS = 240
HELD_OUT = 1000
"""Images or rows of a table that judge."""
COLUMNS, TARGETS = 16, 4


def image_mlp(rank: int, seed: int, data: Path | None, _text: Path | None) -> Task:
    """Make 3072-256-256-C on images, SGD with momentum."""

    def model(classes: int) -> nn.Module:
        hidden = nn.Linear(PIXELS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, classes))

    return _on_images("MLP", model, partial(_sgd, rate=0.02), rank, seed, data)


def image_cnn(rank: int, seed: int, data: Path | None, _text: Path | None) -> Task:
    """Make two convolutions and two fully connected layers on images, SGD with momentum."""

    def model(classes: int) -> nn.Module:
        first = nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU()
        second = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        ends = nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, classes)
        return nn.Sequential(*first, *second, *ends)

    return _on_images("CNN", model, partial(_sgd, rate=0.02), rank, seed, data)


def batch_norm(rank: int, seed: int, data: Path | None, _text: Path | None) -> Task:
    """Make convolutions with batch normalisation between them on images, AdamW."""

    def model(classes: int) -> nn.Module:
        ways = ((3, 16), (16, 32), (32, 64))
        layers = [
            layer
            for inputs, outputs in ways
            for layer in (
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            )
        ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * (SIDE // 8) ** 2, classes))

    return _on_images("batch norm", model, partial(_adamw, rate=2e-3), rank, seed, data)


def gpt(rank: int, seed: int, _data: Path | None, text: Path | None) -> Task:
    """Make a GPT of 0.2 M weights on the bytes of a text, AdamW."""
    task = text_task(text, width=64, layers=3, heads=4, batch=2, rank=_stream(rank, seed))
    return replace(task, block=STEPS, blocks=1)


def lstm(rank: int, seed: int, _data: Path | None, text: Path | None) -> Task:
    """Make an LSTM of 0.2 M weights on the bytes of a text, AdamW."""
    training, held_out = text_batches(text, 4, _stream(rank, seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Lstm(128)
    return Task("LSTM", model, partial(_adamw, rate=4e-3), training, held_out, STEPS, 1)


def table(rank: int, seed: int, _data: Path | None, _text: Path | None) -> Task:
    """Make a small MLP on rows of a table, AdamW."""

    def batches(source: torch.Generator) -> Iterator[Batch]:
        while True:
            yield draw_rows(32, source)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.Tanh(), nn.Linear(64, TARGETS))
    own = torch.Generator().manual_seed(_stream(rank, seed))
    held_out = draw_rows(HELD_OUT, torch.Generator().manual_seed(4))
    judge = nn.functional.mse_loss
    return Task("table", model, partial(_adamw, rate=1e-2), batches(own), held_out, STEPS, 1, judge)


def draw_rows(count: int, source: torch.Generator) -> Batch:
    """Draw rows of a table whose columns have scales from 0.01 to 10, which nobody has normalised.

    The target depends on all columns, by a small network, and has noise.
    """
    hidden, out = _teacher()
    x = torch.randn(count, COLUMNS, generator=source)
    y = (x @ hidden).tanh() @ out + 0.1 * torch.randn(count, TARGETS, generator=source)
    return x * torch.logspace(-2, 1, COLUMNS), y


@cache
def _teacher() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(COLUMNS, 24, generator=generator) / 4,
        torch.randn(24, TARGETS, generator=generator) / 5,
    )


TASKS: dict[str, Callable[[int, int, Path | None, Path | None], Task]] = {
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
        """Return the logits of every next byte."""
        logits: torch.Tensor = self.out(self.layer(self.of_byte(text))[0])
        return logits


def _stream(rank: int, seed: int) -> int:
    """Return a number for a rank's own batches."""
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
) -> Task:
    images = read_images(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = model(images.classes)
    (held_out,) = images.validation(HELD_OUT, HELD_OUT)
    return Task(name, made, optimizer, images.batches(16, _stream(rank, seed)), held_out, STEPS, 1)
