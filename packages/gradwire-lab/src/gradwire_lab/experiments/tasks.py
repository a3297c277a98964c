"""The tasks that methods train: models, optimizers, each rank's batches, and held-out data."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from gradwire.devices import device_of
from gradwire.errors import DataError
from gradwire_lab.experiments.a2dtwp.images import SIDE, read_images
from gradwire_lab.experiments.learning import GOALS, Goal
from gradwire_lab.job.batches import build
from gradwire_lab.job.data import Dataset, load

SEED = 1
HELD_OUT = 1000
CONTEXT, HELD_OUT_CONTEXTS = 128, 16
"""The bytes of the GPT's context, and the number of held-out contexts for its loss."""
LEAST_TEXT_NBYTES = 10 * (CONTEXT + 2)
"""The smallest text, or half of a text, whose held-out tenth has a choice of contexts."""

Batch = tuple[torch.Tensor, torch.Tensor]


def _cross_entropy(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), classes.reshape(-1))


@dataclass(frozen=True)
class Files:
    """The input files of tasks: folders of MNIST and CIFAR (None: scikit-learn's digits), and a text."""

    mnist: Path | None = None
    images: Path | None = None
    text: Path | None = None


@dataclass(frozen=True)
class TrainingTask:
    """A model, its optimizer, and its data: everything that one training run needs.

    Steps are timed in blocks of ``block`` steps, of which plain DDP trains ``blocks``. ``goal`` is the
    accuracy that counts as learned.
    """

    name: str
    model: nn.Module
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Iterator[Batch]
    held_out: Batch
    block: int
    blocks: int
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _cross_entropy
    data: str = ""
    goal: Goal | None = None

    def on(self, device: str) -> TrainingTask:
        """Return this task with its model and batches on a device."""
        to = partial(_moved, device=device)
        model, batches, held_out = self.model.to(device), map(to, self.batches), to(self.held_out)
        return replace(self, model=model, batches=batches, held_out=held_out)

    def wait(self) -> None:
        """Wait until the model's device has finished its queued work."""
        device_of(next(self.model.parameters())).event().wait()

    def loss(self, model: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return self.criterion(model(batch[0]), batch[1])

    def held_out_loss(self, model: nn.Module) -> float:
        """Return the loss on the held-out data."""
        return float(self.criterion(self._output(model), self.held_out[1]))

    def judged(self, model: nn.Module) -> tuple[float, float]:
        """Return a classifier's loss and accuracy on the held-out data."""
        logits, classes = self._output(model), self.held_out[1]
        right = (logits.argmax(-1) == classes).float().mean()
        return float(self.criterion(logits, classes)), float(right)

    def _output(self, model: nn.Module) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            output: torch.Tensor = model(self.held_out[0])
        model.train()
        return output


def mnist_mlp(rank: int, world: int, files: Files, seed: int = 0) -> TrainingTask:
    """Return the task of the 784-500-500-10 MLP with a global batch of 100: 2.6 MB (Pipe-SGD, table 1)."""
    images = _images(files.mnist)
    model = build("mlp", images.image_shape, 10, SEED + seed)
    made = _image_task(images, 100 // world, _stream(rank, seed), lr=0.05, momentum=0.9)
    return made("MNIST-MLP", model, block=50, blocks=6)


def wide_mlp(rank: int, _world: int, files: Files, seed: int = 0) -> TrainingTask:
    """Return the task of a 74 MB MLP with plain SGD; without He's initialization, 60 steps are too few."""
    images = _images(files.mnist)
    model = wide_layers(images, SEED + seed)
    generator = torch.Generator().manual_seed(SEED + seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
    made = _image_task(images, 8, _stream(rank, seed), lr=0.05, momentum=0.0)
    return made("74 MB MLP", model, block=6, blocks=10)


def cifar_cnn(rank: int, _world: int, files: Files, seed: int = 0) -> TrainingTask:
    """Return the task of a CNN of 4.4 MB on CIFAR, with batches of 16 and momentum."""
    images = read_images(files.images)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + seed)
        first = nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.ReLU()
        second = nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()
        ends = nn.Linear(64 * (SIDE // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, images.classes)
        model = nn.Sequential(*first, *second, nn.Flatten(), *ends)
    (held_out,) = images.validation(HELD_OUT, HELD_OUT)
    batches = images.batches(16, _stream(rank, seed))
    optimizer = partial(_sgd, lr=0.02, momentum=0.9)
    data = "digits" if files.images is None else f"CIFAR-{images.classes}"
    goal = GOALS.get(data.lower())
    return TrainingTask("CIFAR CNN", model, optimizer, batches, held_out, 50, 8, data=data, goal=goal)


def wide_layers(images: Dataset, seed: int) -> nn.Module:
    """Return an MLP with three hidden layers and 18 million weights, for MNIST."""
    sizes = [images.image_shape[0] * images.image_shape[1], 3584, 3584, 768]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = [layer for way in pairwise(sizes) for layer in (nn.Linear(*way), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], 10))


def small_gpt(rank: int, _world: int, files: Files, seed: int = 0) -> TrainingTask:
    """Return the task of training a GPT of 6 layers (43 MB) on a text, by default Python's reference."""
    made = text_task(files.text, width=384, layers=6, heads=6, batch=1, rank=rank, seed=seed)
    data = "Python's reference" if files.text is None else files.text.name
    return replace(
        made,
        optimizer=partial(_adamw, lr=3e-4, betas=(0.9, 0.95)),
        blocks=24,  # with 16 blocks and torch's default betas, one seed of three did not learn
        data=data,
        goal=goal_of_bytes(files.text),
    )


def goal_of_bytes(text: Path | None) -> Goal:
    """Return the goal of a GPT: most of the gain of counts of byte pairs over the most frequent byte."""
    training, _ = _parts_of(text)
    _, (held_out, following) = text_batches(text, 1, 0)
    counts = torch.bincount(256 * training[:-1] + training[1:], minlength=1 << 16).view(256, 256)
    guesses = counts.sum(0).argmax(), counts.argmax(1)[held_out]
    chance, known = (float((guess == following).float().mean()) for guess in guesses)
    return Goal(chance, known, "the accuracy of counts of pairs of bytes, without a network")


def text_task(
    text: Path | None,
    *,
    width: int,
    layers: int,
    heads: int,
    batch: int,
    rank: int = 0,
    half: int | None = None,
    seed: int = 0,
) -> TrainingTask:
    """Return the task of a GPT on a text (None: Python's reference), or on its ``half`` 0 or 1."""
    training, held_out = text_batches(text, batch, 1000 * seed + rank, half)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + seed)
        model = GPT(width=width, layers=layers, heads=heads)
    optimizer = partial(_adamw, lr=1e-3)
    return TrainingTask("small GPT", model, optimizer, training, held_out, block=8, blocks=8)


def text_batches(
    text: Path | None, batch: int, rank: int, half: int | None = None
) -> tuple[Iterator[Batch], Batch]:
    """Return a rank's batches from nine tenths of a text or its half, and a batch from the last tenth."""
    training, held_out = _parts_of(text, half)
    return _contexts(training, batch, rank), next(_contexts(held_out, HELD_OUT_CONTEXTS, -1))


def _parts_of(text: Path | None, half: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    read = "\n".join(pydoc_data.topics.topics.values()).encode() if text is None else text.read_bytes()
    least = LEAST_TEXT_NBYTES if half is None else 2 * LEAST_TEXT_NBYTES
    if len(read) < least:
        raise DataError(f"expected at least {least} bytes in {text}, got {len(read)}; pass a longer text")
    data = torch.frombuffer(bytearray(read), dtype=torch.uint8).long()
    if half is not None:
        data = data.chunk(2)[half]
    return data[: -len(data) // 10], data[-len(data) // 10 :]


TASKS = {"mnist-mlp": mnist_mlp, "cifar-cnn": cifar_cnn, "wide-mlp": wide_mlp, "gpt": small_gpt}


class GPT(nn.Module):
    """A decoder-only transformer over bytes (Radford et al., 2018), built from torch's layers."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.of_byte, self.of_place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next byte at every position."""
        count = text.shape[1]
        # Not a buffer, because DDP would broadcast it in each step.
        mask = nn.Transformer.generate_square_subsequent_mask(count, device=text.device)
        x = self.of_byte(text) + self.of_place(torch.arange(count, device=text.device))
        logits: torch.Tensor = self.out(self.layers(x, mask=mask, is_causal=True))
        return logits


def _moved(batch: Batch, device: str) -> Batch:
    return batch[0].to(device), batch[1].to(device)


@cache
def _images(folder: Path | None) -> Dataset:
    """Return the images of MNIST if its folder is given, else scikit-learn's digits."""
    return load("digits") if folder is None else load("mnist", folder)


def _stream(rank: int, seed: int) -> int:
    """Return the random seed of a rank's batches."""
    return 1000 * (1 + seed) + rank


def _image_task(
    images: Dataset, batch: int, stream: int, *, lr: float, momentum: float
) -> Callable[..., TrainingTask]:
    return partial(
        TrainingTask,
        optimizer=partial(_sgd, lr=lr, momentum=momentum),
        batches=_drawn(images, batch, stream),
        held_out=next(images.test_batches(HELD_OUT)),
        data=images.name,
        goal=GOALS[images.name],
    )


def _sgd(net: nn.Module, lr: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)


def _adamw(net: nn.Module, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=lr, betas=betas)


def _drawn(images: Dataset, batch: int, stream: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(stream)
    while True:
        yield images.train_batch(torch.randint(len(images.train_labels), (batch,), generator=generator))


def _contexts(data: torch.Tensor, batch: int, rank: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        places = torch.randint(len(data) - CONTEXT - 1, (batch,), generator=generator)
        pieces = torch.stack([data[place : place + CONTEXT + 1] for place in places.tolist()])
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()
