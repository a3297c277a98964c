"""Figure 3 and table I: the sizes of four networks, counted, and the share of a step that exchanges take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradwire_lab.experiments.claim import Basis, Claim, Explanation, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.papers.exhibit import (
    FLOATING,
    calibrated,
    chosen,
    each,
    exhibit,
    origins,
    paper,
    row_of,
)
from gradwire_lab.experiments.papers.inceptionn.table_2 import STEPS

PLACE = "figure 3"
SIZES_MIB = {"AlexNet": 233.0, "HDC": 2.5, "ResNet-50": 98.0, "VGG-16": 525.0}
SHARE = 0.75
"""Published: the share of AlexNet's time in which gradients and weights travel."""
WITHIN, EXACT = 0.02, 1e-6
HDC_LAYERS, HDC_OF_SIZE = 5, 3
"""The layers that the network is said to have, and those that have the published size."""
FIVE = (
    "five fully connected layers, four of them with 500 outputs, are larger; three have the published size."
)


@dataclass(frozen=True)
class InceptionnFigure3Options:
    """The networks."""

    networks: tuple[str, ...] = tuple(SIZES_MIB)


def cells(options: InceptionnFigure3Options) -> list[Cell]:
    """Return a cell for each network."""
    return cells_of(network=options.networks)


def measure(_options: InceptionnFigure3Options, cell: Cell) -> Mapping[str, Any]:
    """Count the weights of the published layers, as float32; take the share from table II."""
    counts = {
        "AlexNet": _alexnet,
        "HDC": lambda: _hdc(HDC_LAYERS),
        "ResNet-50": _resnet_50,
        "VGG-16": _vgg_16,
    }
    network = cell["network"]
    found: dict[str, Any] = {
        "mib": 4 * counts[network]() / 2**20,
        "communication_share": STEPS[network].communication_share,
    }
    return found | ({"three_layers_mib": 4 * _hdc(HDC_OF_SIZE) / 2**20} if network == "HDC" else {})


def _linear(*widths: int) -> int:
    """Return the weights and biases of fully connected layers from each width to the next."""
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))


def _conv(inputs: int, outputs: int, size: int) -> int:
    return inputs * outputs * size**2 + outputs


def _normalised(inputs: int, outputs: int, size: int) -> int:
    """Return those of a convolution without biases, and of its batch normalisation."""
    return inputs * outputs * size**2 + 2 * outputs


def _alexnet() -> int:
    """Return those of AlexNet, whose second, fourth, and fifth convolution have two groups."""
    shapes = ((3, 96, 11), (48, 256, 5), (256, 384, 3), (192, 384, 3), (192, 256, 3))
    return sum(_conv(*shape) for shape in shapes) + _linear(256 * 6 * 6, 4096, 4096, 1000)


def _hdc(layers: int) -> int:
    return _linear(784, *[500] * (layers - 1), 10)


def _vgg_16() -> int:
    widths = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    convolutions = sum(_conv(inputs, outputs, 3) for inputs, outputs in pairwise(widths))
    return convolutions + _linear(512 * 7 * 7, 4096, 4096, 1000)


def _resnet_50() -> int:
    count, inputs = _normalised(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            outputs = 4 * width
            count += (
                _normalised(inputs, width, 1) + _normalised(width, width, 3) + _normalised(width, outputs, 1)
            )
            count += _normalised(inputs, outputs, 1) if block == 0 else 0
            inputs = outputs
    return count + _linear(inputs, 1000)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare sizes and the share with those published."""
    five_mib = 4 * _hdc(HDC_LAYERS) / 2**20
    found = [
        Claim(
            f"{network}: size of the weights",
            only(row_of(rows, network=network)["mib"]),
            near(published, WITHIN),
            unit="MiB",
            published=Published("table I", published, FIVE if network == "HDC" else ""),
            otherwise=Explanation(FIVE, near(five_mib, EXACT)) if network == "HDC" else None,
            basis=Basis.ARITHMETIC,
        )
        for network, published in SIZES_MIB.items()
    ]
    return [
        *found,
        Claim(
            "HDC: size of three of its layers",
            only(row_of(rows, network="HDC")["three_layers_mib"]),
            near(SIZES_MIB["HDC"], WITHIN),
            unit="MiB",
            published=Published("table I", SIZES_MIB["HDC"]),
            basis=Basis.ARITHMETIC,
        ),
        Claim(
            "AlexNet: share of the time in communication",
            only(row_of(rows, network="AlexNet")["communication_share"]),
            near(SHARE, WITHIN),
            published=Published(PLACE, SHARE),
            basis=Basis.ARITHMETIC,
        ),
    ]


ORIGINS = origins(
    SIZES_MIB=paper("table I"),
    SHARE=paper("figure 3"),
    WITHIN=chosen("published sizes have two or three digits"),
    EXACT=FLOATING,
    HDC_LAYERS=paper("table I"),
    HDC_OF_SIZE=calibrated("table I, size of HDC"),
    networks=paper("table I"),
)
EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how large are the networks' gradients, and how long do they travel?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=InceptionnFigure3Options(),
    full=InceptionnFigure3Options(),
    scaling="arithmetic: weights are counted from the published layers, and the share is that of table "
    "II's steps. What the paper calls MB are MiB.",
    origins=ORIGINS,
    seconds=(1, 1),
)
