"""The networks that INCEPTIONN's figures are trained on here: HDC in two depths, and a small CNN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch's import takes seconds
    import torch

HIDDEN = 500
HE, XAVIER, DEFAULT = "He", "Xavier", "torch's default"


@dataclass(frozen=True)
class Network:
    """A network, how its weights are initialised, and its learning rate.

    Attributes
    ----------
    layers
        Fully connected layers with 500 hidden units; 0 for the CNN of ``gradwire.job.models``.
    initialisation
        Of the weights. Biases of HDC begin with zero, as in Caffe, which the paper's authors trained with.
    rate
        The learning rate at the beginning.
    rate_from
        Where the rate comes from.
    """

    layers: int
    initialisation: str
    rate: float
    rate_from: str


NETWORKS = MappingProxyType(
    {
        **{
            f"HDC, {layers} layers, {initialisation}": Network(layers, initialisation, 0.1, "table I")
            for layers in (3, 5)
            for initialisation in (HE, XAVIER)
        },
        "CNN": Network(0, DEFAULT, 0.05, "the rate of gradwire's other trainings of this network"),
    }
)
"""By name. Table I names five layers and a size of 2.5 MB, which three layers have."""
SMALLEST = "CNN"


def build(name: str, image_shape: tuple[int, int], classes: int, seed: int) -> torch.nn.Module:
    """Return a network whose weights depend on ``seed`` alone."""
    import torch
    from torch import nn

    from gradwire.job import models

    network = NETWORKS[name]
    if network.layers == 0:
        return models.build("cnn", image_shape, classes, seed)
    initialise: Callable[[torch.Tensor], object] = (
        nn.init.kaiming_normal_ if network.initialisation == HE else nn.init.xavier_uniform_
    )
    sizes = [image_shape[0] * image_shape[1], *[HIDDEN] * (network.layers - 1), classes]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layer = nn.Linear(inputs, outputs)
            initialise(layer.weight)
            nn.init.zeros_(layer.bias)
            modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])
