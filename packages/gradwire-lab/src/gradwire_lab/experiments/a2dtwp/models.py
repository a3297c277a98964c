"""The networks of table I in A2DTWP: AlexNet with one more FC-4096, VGG-A, and ResNet-34.

For images of 32 pixels, networks may have fewer channels, and AlexNet's first stride is 2 instead of 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from gradwire_lab.experiments.a2dtwp.options import MODELS

POOL = 0
"""The entry for a pooling layer in a list of widths."""
VGG_A = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
RESNET_34 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""The channels, number of blocks, and stride of the first block of each stage."""
HIDDEN, DROPOUT = 4096, 0.5
DEVIATION = 0.1
"""The standard deviation of the initial weights: a variance of 1e-2 (section IV-B)."""
BIASES = {"alexnet": 0.1}
"""The initial biases of the networks (section IV-B); 0 in networks that aren't listed."""
FULL_SIDE = 224
"""The number of pixels along each side of the paper's images."""


@dataclass(frozen=True)
class Shape:
    """A network's shape: the channels' divisor, batch normalization (not in the last layer), images' side."""

    classes: int
    narrower: int
    norm: bool
    side: int = 32


def build(name: str, shape: Shape, seed: int, *, he: bool = False) -> nn.Module:
    """Return a network with the paper's initial weights, or with He initialization."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _BUILDERS[name](shape)
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                if he:
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                else:
                    nn.init.normal_(module.weight, std=DEVIATION)
                if module.bias is not None:
                    nn.init.constant_(module.bias, BIASES.get(name, 0.0))
        return model


def blocks_of(model: nn.Module) -> list[str]:
    """Return the names of the residual blocks. All weights of a block are sent with equally many bits."""
    return [name for name, module in model.named_modules() if isinstance(module, ResidualBlock)]


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, which is a third convolution if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_conv(inputs, outputs, 3, stride))
        self.second = nn.Sequential(*_conv(outputs, outputs, 3))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the convolutions and the shortcut."""
        return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.shortcut(x))


def _alexnet(shape: Shape) -> nn.Module:
    widths = [width // shape.narrower for width in (64, 192, 384, 384, 256)]
    full = shape.side == FULL_SIDE
    features: list[nn.Module] = []
    inputs = 3
    for number, (width, size) in enumerate(zip(widths, (11, 5, 3, 3, 3), strict=True)):
        stride, padding = ((4, 2) if full else (2, 5)) if number == 0 else (1, size // 2)
        features += [*_conv(inputs, width, size, stride, padding, norm=shape.norm), nn.ReLU()]
        features += [nn.MaxPool2d(2)] if number in (0, 1, 4) else []
        inputs = width
    hidden = HIDDEN // shape.narrower
    pixels = 36 if full else 4
    return nn.Sequential(*features, *_head([pixels * inputs, hidden, hidden, hidden], shape))


def _vgg(shape: Shape) -> nn.Module:
    features: list[nn.Module] = []
    inputs = 3
    for width in VGG_A:
        if width == POOL:
            features.append(nn.MaxPool2d(2))
        else:
            outputs = width // shape.narrower
            features += [*_conv(inputs, outputs, 3, norm=shape.norm), nn.ReLU()]
            inputs = outputs
    hidden = HIDDEN // shape.narrower
    return nn.Sequential(*features, *_head([(shape.side // 32) ** 2 * inputs, hidden, hidden], shape))


def _resnet(shape: Shape) -> nn.Module:
    inputs = RESNET_34[0][0] // shape.narrower
    layers: list[nn.Module] = [*_conv(3, inputs, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    for width, blocks, stride in RESNET_34:
        outputs = width // shape.narrower
        for number in range(blocks):
            layers.append(ResidualBlock(inputs, outputs, stride if number == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, shape.classes))


def _conv(
    inputs: int, outputs: int, size: int, stride: int = 1, padding: int | None = None, *, norm: bool = True
) -> list[nn.Module]:
    around = size // 2 if padding is None else padding
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=around, bias=not norm)
    return [conv, nn.BatchNorm2d(outputs)] if norm else [conv]


def _head(widths: Sequence[int], shape: Shape) -> Iterator[nn.Module]:
    """Yield the fully connected layers, with dropout between them."""
    yield nn.Flatten()
    for inputs, outputs in pairwise(widths):
        yield nn.Linear(inputs, outputs)
        if shape.norm:
            yield nn.BatchNorm1d(outputs)
        yield from (nn.ReLU(), nn.Dropout(DROPOUT))
    yield nn.Linear(widths[-1], shape.classes)


_BUILDERS: dict[str, Callable[[Shape], nn.Module]] = dict(zip(MODELS, (_alexnet, _vgg, _resnet), strict=True))
