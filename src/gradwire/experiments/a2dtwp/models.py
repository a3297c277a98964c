"""The networks of table I in A2DTWP, with fewer channels: AlexNet with one more FC-4096, VGG-A, ResNet-34.

Kernels, depths, and the proportions of the widths are the paper's. Images are 32 pixels wide instead of 224,
so AlexNet's first convolution moves by 2 instead of 4. All layers but the last have batch normalisation: the
magnitudes of weights of 8 bits are powers of 4, less than half of the weights on average, and nine such
layers in a row would leave nothing of a signal that isn't normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import nn

from gradwire.experiments.a2dtwp.options import MODELS

POOL = 0
"""Where a list of widths has a pooling layer."""
VGG_A = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
RESNET_34 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Channels, blocks, and the stride of the first block, for each stage."""
HIDDEN, DROPOUT = 4096, 0.5


def build(name: str, classes: int, narrower: int, seed: int) -> nn.Module:
    """Return a network whose layers have ``1 / narrower`` of the paper's channels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _BUILDERS[name](classes, narrower)
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        return model


def blocks_of(model: nn.Module) -> list[str]:
    """Return the names of the residual blocks, each of which has one precision."""
    return [name for name, module in model.named_modules() if isinstance(module, ResidualBlock)]


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, which is a convolution of its own where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _conv(inputs, outputs, 3, stride), _conv(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return nn.functional.relu(self.second(nn.functional.relu(self.first(x))) + self.shortcut(x))


def _alexnet(classes: int, narrower: int) -> nn.Module:
    widths = [width // narrower for width in (64, 192, 384, 384, 256)]
    ways = zip(
        [3, *widths],
        widths,
        (11, 5, 3, 3, 3),
        (2, 1, 1, 1, 1),
        (True, True, False, False, True),
        strict=False,
    )
    features = [
        layer
        for inputs, outputs, size, stride, pooled in ways
        for layer in (_conv(inputs, outputs, size, stride), nn.ReLU(), *([nn.MaxPool2d(2)] if pooled else []))
    ]
    hidden = HIDDEN // narrower
    return nn.Sequential(*features, *_head([4 * widths[-1], hidden, hidden, hidden], classes))


def _vgg(classes: int, narrower: int) -> nn.Module:
    features: list[nn.Module] = []
    inputs = 3
    for width in VGG_A:
        if width == POOL:
            features.append(nn.MaxPool2d(2))
        else:
            features += [_conv(inputs, width // narrower, 3), nn.ReLU()]
            inputs = width // narrower
    hidden = HIDDEN // narrower
    return nn.Sequential(*features, *_head([inputs, hidden, hidden], classes))


def _resnet(classes: int, narrower: int) -> nn.Module:
    inputs = RESNET_34[0][0] // narrower
    layers: list[nn.Module] = [_conv(3, inputs, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    for width, blocks, stride in RESNET_34:
        outputs = width // narrower
        for number in range(blocks):
            layers.append(ResidualBlock(inputs, outputs, stride if number == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


def _head(widths: Sequence[int], classes: int) -> Iterator[nn.Module]:
    """Yield the fully connected layers."""
    yield nn.Flatten()
    for inputs, outputs in pairwise(widths):
        yield from (nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(DROPOUT))
    yield nn.Linear(widths[-1], classes)


_BUILDERS: MappingProxyType[str, Callable[[int, int], nn.Module]] = MappingProxyType(
    dict(zip(MODELS, (_alexnet, _vgg, _resnet), strict=True))
)
