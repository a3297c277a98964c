"""The convex task's features: images behind the convolutions of a ResNet-20 whose weights are fixed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from gradwire.errors import DataError
from gradwire.experiments.a2dtwp.images import read_images
from gradwire.experiments.papers.exhibit import DIGITS

if TYPE_CHECKING:
    from gradwire.experiments.a2dtwp.images import Images

CIFAR = "cifar100"
WEIGHTS = "resnet-cifar10-weights/resnet20*.th"
"""Of a ResNet-20 for CIFAR-10, below ``$GRADWIRE_DATA``."""
CHANNELS, BLOCKS, SIDE = (16, 32, 64), 3, 4
"""Of the three stages, each of so many blocks; the last one's outputs are averaged to SIDE x SIDE places."""
COUNT = CHANNELS[-1] * SIDE * SIDE
AT_ONCE = 250
"""Images that pass the network at once."""


@dataclass(frozen=True)
class Features:
    """Features of images, centred and scaled by those of some training images, and the fixed network.

    Attributes
    ----------
    images, weights
        The images, and the fixed network's weights by name.
    """

    images: Images
    weights: Mapping[str, torch.Tensor]

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.images.classes

    @property
    def labels(self) -> torch.Tensor:
        """The classes of the training images."""
        return self.images.train_labels

    @property
    def test_labels(self) -> torch.Tensor:
        """The classes of the test images."""
        return self.images.test_labels

    @cached_property
    def train(self) -> torch.Tensor:
        """The features of all training images."""
        return self._all(self.images.train)

    @cached_property
    def test(self) -> torch.Tensor:
        """The features of all test images."""
        return self._all(self.images.test)

    def of_images(self, chosen: torch.Tensor) -> torch.Tensor:
        """Return the features of training images, computed anew."""
        return self._of(self.images.train[chosen])

    def _all(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._of(part) for part in torch.split(images, AT_ONCE)])

    def _of(self, images: torch.Tensor) -> torch.Tensor:
        centre, scale = self._moments
        return (_outputs(self.weights, images) - centre) / scale

    @cached_property
    def _moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean and the deviation of the features of some training images, evenly spaced."""
        some = _outputs(self.weights, self.images.train[:: max(1, len(self.labels) // AT_ONCE)])
        return some.mean(0), some.std() + 1e-12


def source() -> str:
    """Return ``cifar100`` if ``$GRADWIRE_DATA`` holds it and the weights, else ``digits``."""
    folder = Path(os.environ.get("GRADWIRE_DATA", "") or os.devnull)
    return CIFAR if (folder / CIFAR).is_dir() and [*folder.glob(WEIGHTS)] else DIGITS


@lru_cache(maxsize=1)
def read(name: str) -> Features:
    """Return the features of a data set. Raises ``DataError``."""
    folder = Path(os.environ.get("GRADWIRE_DATA", ""))
    if name == DIGITS:
        images, weights = read_images(None), drawn()
    else:
        images, weights = read_images(folder / CIFAR), _read(folder)
    return Features(images, weights)


def _read(folder: Path) -> dict[str, torch.Tensor]:
    paths = sorted(folder.glob(WEIGHTS))
    if not paths:
        raise DataError(
            f"expected {WEIGHTS} in {folder}, got none; set GRADWIRE_DATA to the folder that has it"
        )
    stored = torch.load(paths[0], map_location="cpu", weights_only=True)["state_dict"]
    return {name.removeprefix("module."): tensor for name, tensor in stored.items()}


def drawn() -> dict[str, torch.Tensor]:
    """Return weights drawn at random, the same ones each time (He and others, 2015)."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}

    def add(conv: str, norm: str, inputs: int, outputs: int) -> None:
        deviation = (2 / (9 * inputs)) ** 0.5
        found[f"{conv}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=generator) * deviation
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            found[f"{norm}.{name}"] = torch.full((outputs,), value)

    add("conv1", "bn1", 3, CHANNELS[0])
    inputs = CHANNELS[0]
    for block, outputs, _ in _blocks():
        add(f"{block}.conv1", f"{block}.bn1", inputs, outputs)
        add(f"{block}.conv2", f"{block}.bn2", outputs, outputs)
        inputs = outputs
    return found


def _blocks() -> list[tuple[str, int, int]]:
    """Return the name, the channels, and the stride of each residual block."""
    return [
        (f"layer{stage}.{block}", channels, 2 if stage > 1 and block == 0 else 1)
        for stage, channels in enumerate(CHANNELS, 1)
        for block in range(BLOCKS)
    ]


def _outputs(weights: Mapping[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Return what the fixed convolutions make of images of uint8."""

    def convolve(x: torch.Tensor, conv: str, norm: str, stride: int = 1) -> torch.Tensor:
        y = functional.conv2d(x, weights[f"{conv}.weight"], stride=stride, padding=1)
        mean, variance, weight, bias = (
            weights[f"{norm}.{name}"] for name in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(y, mean, variance, weight, bias)

    with torch.no_grad():
        # The published network's mean and deviation of ImageNet's colours.
        mean, deviation = (
            torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        x = functional.relu(convolve((images.float() / 255 - mean) / deviation, "conv1", "bn1"))
        for block, channels, stride in _blocks():
            y = functional.relu(convolve(x, f"{block}.conv1", f"{block}.bn1", stride))
            y = convolve(y, f"{block}.conv2", f"{block}.bn2")
            if stride > 1:  # a shortcut without parameters: every other place, and new channels of zeros
                padding = channels // 4
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, padding, padding))
            x = functional.relu(x + y)
        return functional.adaptive_avg_pool2d(x, SIDE).flatten(1)
