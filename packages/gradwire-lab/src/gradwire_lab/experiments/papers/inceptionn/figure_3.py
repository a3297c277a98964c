"""Figure 3 and table I: the counted sizes of four networks, and the exchange's share of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
    paper,
    row_of,
)
from gradwire_lab.experiments.papers.inceptionn import full_size
from gradwire_lab.experiments.papers.inceptionn.table_2 import STEPS, NetworksOptions

PLACE = "figure 3"
SIZES_MIB = {"AlexNet": 233.0, "HDC": 2.5, "ResNet-50": 98.0, "VGG-16": 525.0}
SHARE = 0.75
"""The published share of AlexNet's time that is spent exchanging gradients and weights."""
WITHIN, EXACT = 0.02, 1e-6
HDC_LAYERS, HDC_OF_SIZE = 5, 3
"""The number of layers that the paper states, and the number of layers that gives the published size."""
FIVE = (
    "five fully connected layers, four of them with 500 outputs, are larger; three have the published size."
)


def measure(_options: NetworksOptions, cell: Cell) -> Mapping[str, Any]:
    """Count the weights of the published layers, as float32, and compute the share from table II."""
    network = cell["network"]
    share = {"communication_share": STEPS[network].communication_share}
    if network == "HDC":
        return {"mib": _mib(_hdc(HDC_LAYERS)), **share, "three_layers_mib": _mib(_hdc(HDC_OF_SIZE))}
    return {"mib": _mib(full_size.count(network)), **share}


def _mib(floats: int) -> float:
    return 4 * floats / 2**20


def _hdc(layers: int) -> int:
    """Return the weights and biases of fully connected layers with 500 outputs, except the last layer."""
    widths = (784, *[500] * (layers - 1), 10)
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the sizes and the share with published figures."""
    five = Explanation(FIVE, near(_mib(_hdc(HDC_LAYERS)), EXACT))
    counted = partial(Claim, basis=Basis.ARITHMETIC)
    found = [
        counted(
            f"{network}: size of the weights",
            only(row_of(rows, network=network)["mib"]),
            near(size_mib, WITHIN),
            unit="MiB",
            published=Published("table I", size_mib, FIVE if network == "HDC" else ""),
            otherwise=five if network == "HDC" else None,
        )
        for network, size_mib in SIZES_MIB.items()
    ]
    three, share = row_of(rows, network="HDC"), row_of(rows, network="AlexNet")
    return [
        *found,
        counted(
            "HDC: size of three of its layers",
            only(three["three_layers_mib"]),
            near(SIZES_MIB["HDC"], WITHIN),
            unit="MiB",
            published=Published("table I", SIZES_MIB["HDC"]),
        ),
        counted(
            "AlexNet: share of the time in communication",
            only(share["communication_share"]),
            near(SHARE, WITHIN),
            published=Published(PLACE, SHARE),
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how large are the networks' gradients, and what share of a step is their exchange?",
    cells=lambda options: cells_of(network=options.networks),
    run=each(measure),
    claims=claims,
    quick=NetworksOptions(tuple(SIZES_MIB)),
    full=NetworksOptions(tuple(SIZES_MIB)),
    scaling="arithmetic: weights are counted from the published layers, and the share is computed from "
    "table II's steps. The paper's MB are MiB.",
    origins={
        "SIZES_MIB HDC_LAYERS networks": paper("table I"),
        "SHARE": paper("figure 3"),
        "WITHIN": chosen("published sizes have two or three digits"),
        "EXACT": FLOATING,
        "HDC_OF_SIZE": calibrated("table I, size of HDC"),
    },
    seconds=(1, 1),
)
