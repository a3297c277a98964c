"""The order of images, the learning rates, and the models, all identical for every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from gradwire.deferred import torch

RISE = 0.1
"""The share of a run's steps during which the learning rate warms up."""


def lengths(steps: int, every: int) -> list[int]:
    """Return the number of steps before each evaluation: one every ``every`` steps and one at the end."""
    whole, rest = divmod(steps, every)
    return [every] * whole + ([rest] if rest else [])


def shuffle(images: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the shuffled image indices of an epoch, the same on every rank."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % (1 << 63))
    return torch.randperm(images, generator=generator)


def share(order: torch.Tensor, number: int, batch: int, rank: int, workers: int) -> torch.Tensor:
    """Return the image indices of worker ``rank`` in global batch ``number`` of an epoch."""
    size = batch // workers
    start = number * batch + rank * size
    return order[start : start + size]


def learning_rate(step: int, steps: int, peak: float, schedule: str = "cosine") -> float:
    """Return the learning rate of a step (from 0): a linear rise, then a fall along a cosine, or a constant.

    Pipe-SGD needs the rise, because stale gradients make early training unstable; so all methods have it.
    """
    rise = math.ceil(RISE * steps)
    if step < rise:
        return peak * (step + 1) / rise
    if schedule == "constant":
        return peak
    return 0.5 * peak * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


# The models of the job: small enough for CPUs, and large enough to make the network the bottleneck.


def build(name: str, image_shape: tuple[int, int], classes: int, seed: int) -> torch.nn.Module:
    """Return the model ``name``, initialised from ``seed`` without changing torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](image_shape, classes)


def _cnn(image_shape: tuple[int, int], classes: int) -> torch.nn.Module:
    """Return a model of two convolutions and two linear layers, with few weights and much computation."""
    rows, columns = image_shape
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * (rows // 4) * (columns // 4), 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, classes),
    )


def _fully_connected(
    image_shape: tuple[int, int], classes: int, layers: int, hidden: int = 500
) -> torch.nn.Module:
    sizes = [image_shape[0] * image_shape[1], *[hidden] * (layers - 1), classes]
    modules: list[torch.nn.Module] = [torch.nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        modules += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


MODELS: MappingProxyType[str, Callable[[tuple[int, int], int], torch.nn.Module]] = MappingProxyType(
    {
        "mlp": partial(_fully_connected, layers=3),  # the MNIST-MLP of the Pipe-SGD paper: 784-500-500-10
        "hdc": partial(_fully_connected, layers=5),  # the HDC of the INCEPTIONN paper, table I
        "wide": partial(_fully_connected, layers=4, hidden=1536),  # 5 million weights, 20 MB of gradients
        "cnn": _cnn,
    }
)
"""The functions that build models from an image shape and a number of classes, by name."""
