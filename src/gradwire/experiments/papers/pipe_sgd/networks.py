"""AlexNet and ResNet-18 for images of few pixels: the published depths, with few channels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from gradwire.experiments.a2dtwp.models import ResidualBlock

POOL = 0
"""Where a list of channels has a pooling layer."""
ALEXNET, HIDDEN = (16, POOL, 32, POOL, 48, 48, 32), 128
RESNET_18 = ((8, 1), (16, 2), (32, 2), (64, 2))
"""Channels, and the stride of the first of two blocks, for each stage."""


MOST_PIXELS = 8
"""Wider images are averaged over squares of pixels, so that a core trains in minutes."""


def build(name: str, pixels: int, classes: int, seed: int) -> nn.Module:
    """Return ``AlexNet`` or ``ResNet-18`` for square images; its weights depend on ``seed`` alone."""
    averaged = -(-pixels // MOST_PIXELS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _alexnet(pixels // averaged, classes) if name == "AlexNet" else _resnet(classes)
    return nn.Sequential(nn.AvgPool2d(averaged), model) if averaged > 1 else model


def _alexnet(pixels: int, classes: int) -> nn.Module:
    """Return five convolutions and three fully connected layers, without dropout."""
    layers, inputs = list[nn.Module](), 1
    for width in ALEXNET:
        if width == POOL:
            layers.append(nn.MaxPool2d(2))
            pixels //= 2
        else:
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
    layers.append(nn.Flatten())
    for one, other in pairwise([inputs * pixels**2, HIDDEN, HIDDEN]):
        layers += [nn.Linear(one, other), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(HIDDEN, classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model


def _resnet(classes: int) -> nn.Module:
    """Return a convolution, eight blocks of two with a shortcut each, and a fully connected layer."""
    inputs = RESNET_18[0][0]
    layers: list[nn.Module] = [
        nn.Conv2d(1, inputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
    ]
    for width, stride in RESNET_18:
        layers += [ResidualBlock(inputs, width, stride), ResidualBlock(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
