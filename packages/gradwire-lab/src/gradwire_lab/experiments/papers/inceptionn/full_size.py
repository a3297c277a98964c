"""AlexNet, VGG-16, and ResNet-50 in the sizes of table I, and the first steps of their training."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from gradwire.deferred import torch
from gradwire.errors import DataError
from gradwire_lab.experiments.hosts.training import flat
from gradwire_lab.job.data import data_folder

if TYPE_CHECKING:  # functions import torch, because the import takes seconds
    from torch import nn

CLASSES = 1000
MOMENTUM = 0.9
"""The momentum in table I."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The moments of ImageNet's pixels from 0 to 1, by color; Caffe only subtracts the mean."""


UNTRIED = "it takes minutes; run --full."
"""The reason why a short run has no row for a full-size network."""


@dataclass(frozen=True)
class FullSize:
    """A network of table I, with its settings at the beginning of training.

    Images are ``side`` pixels wide and high. Pixels from 0 to 1, minus their mean, are divided by
    ``deviation``. ``steps`` is the published number of a complete training run.
    """

    side: int
    deviation: tuple[float, float, float]
    rate: float
    weight_decay: float
    steps: int


FULL_SIZE = {
    "AlexNet": FullSize(227, (1 / 255,) * 3, 0.01, 5e-5, 320_000),
    "ResNet-50": FullSize(224, DEVIATION, 0.1, 1e-4, 600_000),
    "VGG-16": FullSize(224, DEVIATION, 0.01, 5e-5, 370_000),
}
"""The full-size networks by name, with the settings of table I."""


def missing() -> str:
    """Return the reason why this machine can't train on ImageNet's images, or nothing if it can."""
    if find_spec("PIL") is None:
        return "the package pillow, which reads JPEG files, is not installed (extra papers)."
    if not _archives():
        return "$GRADWIRE_DATA holds no imagenet1000/*.zip with JPEG files in a folder for each class."
    return ""


def _archives() -> list[Path]:
    folder = data_folder()
    return [] if folder is None else sorted((folder / "imagenet1000").glob("*.zip"))


class Photographs:
    """The images of an archive with a folder per class, in a seed's order. Raises ``DataError``."""

    def __init__(self, side: int, deviation: tuple[float, float, float], seed: int) -> None:
        archives = _archives()
        if not archives:
            raise DataError(
                "expected imagenet1000/*.zip in $GRADWIRE_DATA, got none; add ImageNet's JPEG files, in a "
                "folder for each class"
            )
        self._side, self._deviation, self._archive = side, deviation, archives[0]
        with ZipFile(self._archive) as archive:
            names = sorted(name for name in archive.namelist() if name.lower().endswith((".jpg", ".jpeg")))
        folders = sorted({Path(name).parts[0] for name in names})
        self._classes = {folder: number for number, folder in enumerate(folders)}
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
        self._names = [names[number] for number in order.tolist()]

    def batch(self, number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images of a batch, scaled and normalized, and their classes."""
        names = [self._names[place % len(self._names)] for place in range(number * size, (number + 1) * size)]
        with ZipFile(self._archive) as archive:
            pixels = torch.stack([self._read(archive.read(name)) for name in names])
        mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, self._deviation))
        images = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / deviation
        return images, torch.tensor([self._classes[Path(name).parts[0]] for name in names])

    def _read(self, file: bytes) -> torch.Tensor:
        """Return the pixels of a JPEG file: rows, columns, and colors."""
        import numpy as np
        from PIL import Image

        image = Image.open(io.BytesIO(file)).convert("RGB")
        scaled = image.resize((self._side, self._side), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(scaled))


def train(
    name: str, steps: int, batch: int, seed: int, watch: Callable[[int, torch.Tensor], None]
) -> list[float]:
    """Run the first steps of training with one worker, and return the losses.

    The seed determines the order of images, which repeats once all images have been used. ``watch`` is called
    with each step's number and gradient. Raises ``DataError``.
    """
    from torch import nn

    setting, losses = FULL_SIZE[name], list[float]()
    images = Photographs(setting.side, setting.deviation, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build(name)
        parameters = [*net.parameters()]
        optimizer = torch.optim.SGD(
            parameters, setting.rate, momentum=MOMENTUM, weight_decay=setting.weight_decay, fused=True
        )
        for step in range(steps):
            inputs, labels = images.batch(step, batch)
            loss = nn.functional.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            watch(step, flat(each.grad for each in parameters if each.grad is not None))
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def build(name: str) -> nn.Module:
    """Return a network with Caffe's (AlexNet) or torchvision's initialization, which suit table I's rates."""
    from torch import nn

    network = _BUILDERS[name]()
    layers = [each for each in network.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    for number, layer in enumerate(layers):
        bias = 0.0
        if name == "AlexNet":
            nn.init.normal_(layer.weight, std=0.005 if number in (5, 6) else 0.01)
            bias = 0.1 if number in (1, 3, 4, 5, 6) else 0.0
        elif isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif name == "VGG-16":
            nn.init.normal_(layer.weight, std=0.01)
        if layer.bias is not None:
            nn.init.constant_(layer.bias, bias)
    return network


def count(name: str) -> int:
    """Return the number of weights and biases of a network, without allocating memory for the network."""
    with torch.device("meta"):
        return sum(each.numel() for each in _BUILDERS[name]().parameters())


def _alexnet() -> nn.Module:
    """Return Caffe's AlexNet, whose second, fourth, and fifth convolutions have two groups."""
    from torch import nn

    layers, inputs = list[nn.Module](), 3
    for width, size, stride, groups, is_normed, is_pooled in (
        (96, 11, 4, 1, True, True),
        (256, 5, 1, 2, True, True),
        (384, 3, 1, 1, False, False),
        (384, 3, 1, 2, False, False),
        (256, 3, 1, 2, False, True),
    ):
        padding = 0 if stride > 1 else size // 2
        layers += [nn.Conv2d(inputs, width, size, stride, padding, groups=groups), nn.ReLU()]
        layers += [nn.LocalResponseNorm(5, 1e-4, 0.75)] if is_normed else []
        layers += [nn.MaxPool2d(3, 2)] if is_pooled else []
        inputs = width
    return nn.Sequential(*layers, *_head(256 * 6 * 6))


def _vgg_16() -> nn.Module:
    from torch import nn

    layers, inputs = list[nn.Module](), 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_head(inputs * 7 * 7))


def _head(inputs: int) -> list[nn.Module]:
    from torch import nn

    return [
        nn.Flatten(),
        *(nn.Linear(inputs, 4096), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(4096, CLASSES),
    ]


def _resnet_50() -> nn.Module:
    from torch import nn

    def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        return [layer, nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):
        """Three convolutions and a shortcut, which is a fourth convolution if the shape changes."""

        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = 4 * width
            first, second = conv(inputs, width, 1, stride), conv(width, width, 3)
            last = conv(width, outputs, 1)
            self.residual = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *last)
            same = inputs == outputs and stride == 1
            self.shortcut = nn.Identity() if same else nn.Sequential(*conv(inputs, outputs, 1, stride))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the sum of the convolutions and the shortcut."""
            return nn.functional.relu(self.residual(x) + self.shortcut(x))

    layers, inputs = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if block == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


_BUILDERS = {"AlexNet": _alexnet, "ResNet-50": _resnet_50, "VGG-16": _vgg_16}
