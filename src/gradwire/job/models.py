"""The models of the job, small enough for CPUs and large enough that the network is the bottleneck."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import MappingProxyType

from gradwire.deferred import torch


def build(name: str, image_shape: tuple[int, int], classes: int, seed: int) -> torch.nn.Module:
    """Return the model ``name``; its weights depend on ``seed`` alone, the global generator is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](image_shape, classes)


def _mlp(image_shape: tuple[int, int], classes: int) -> torch.nn.Module:
    """Two hidden layers of 500: the MNIST-MLP of the Pipe-SGD paper, 784-500-500-10."""
    return _fully_connected(image_shape, classes, layers=3)


def _hdc(image_shape: tuple[int, int], classes: int) -> torch.nn.Module:
    """Five fully connected layers, hidden size 500: the HDC of the INCEPTIONN paper, table I."""
    return _fully_connected(image_shape, classes, layers=5)


def _wide(image_shape: tuple[int, int], classes: int) -> torch.nn.Module:
    """Three hidden layers of 1536: about 5 million weights, of which a network carries 20 MB a step."""
    return _fully_connected(image_shape, classes, layers=4, hidden=1536)


def _cnn(image_shape: tuple[int, int], classes: int) -> torch.nn.Module:
    """Two convolutions and two fully connected layers; few weights, much computation."""
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
    {"mlp": _mlp, "hdc": _hdc, "wide": _wide, "cnn": _cnn}
)
"""Name -> builder from image shape and number of classes."""
