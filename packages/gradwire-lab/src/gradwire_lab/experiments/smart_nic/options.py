"""The options and cells of the smart NIC experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gradwire_lab.closed_forms.smart_nic_figures import (
    BATCHES,
    LARGE,
    SMALL,
    Prototype,
    calibrate,
    constants,
    figures,
    throughput,
)
from gradwire_lab.experiments.experiment import Cell, CheckedOptions, Report, cells_of, option
from gradwire_lab.experiments.hosts import check_networks
from gradwire_lab.job.data import at_hand

PAPER, RING, STEP = "paper", "ring", "step"
PARTS = (PAPER, RING, STEP)
CONSTANT, FIGURE, SCALING = "constant", "figure", "scaling"
"""The kinds of cells in the part ``paper``."""
CALIBRATION = "calibration"
"""The first cell of the part ``step``. The model's parameters are calibrated on this cell."""
NODES = (3, 4, 5, 6, 8, 12, 16, 24, 32)
IDENTITY, BFP = "identity", "bfp:7x16"
RINGS = ((IDENTITY, 3, 1), (IDENTITY, 6, 1), (IDENTITY, 3, 3), (BFP, 3, 1), (BFP, 4, 1), (BFP, 3, 3))
"""The rings: codec, number of nodes, and number of consecutive all-reduces."""
NAIVE, OVERLAPPED, LAYERWISE = "naive", "overlapped", "layer-wise"
METHODS = (NAIVE, OVERLAPPED, LAYERWISE)
NICS = ((LAYERWISE, IDENTITY), (LAYERWISE, BFP))
"""The schedule and the codec of the smart NIC, without and with BFP."""
COMPARED = ((NAIVE, IDENTITY), (OVERLAPPED, IDENTITY), *NICS)
"""The paper's two baselines and its smart NIC."""
ALL = (*COMPARED, (NAIVE, BFP), (OVERLAPPED, BFP))


@dataclass(frozen=True)
class SmartNicOptions(CheckedOptions):
    """The options. The model is calibrated on the first of ``hosts``, ``rates``, ``widths``, and ``batches``.

    It predicts measurements that differ in one value, or only in the batch on the most hosts.
    """

    parts: tuple[str, ...] = option(PARTS, "parts to run", known=PARTS)
    rings: int = len(RINGS)
    chunk_words: int = 160
    hosts: tuple[int, ...] = option(
        (2, 3, 4), "number of hosts, or several, the first for calibration", value="N"
    )
    rates: tuple[str, ...] = option(
        ("200mbit", "100mbit"), "link rates to compare, the first for calibration"
    )
    widths: tuple[int, ...] = option((256, 512), "inputs and outputs of a layer", least=64)
    batches: tuple[int, ...] = option(BATCHES, "samples per host and step", name="--batch-sizes", least=1)
    layers: int = option(6, "layers of the perceptron on the testbed", least=2)
    steps: int = option(40, "stop each run after N steps", name="--max-steps", least=5)
    seeds: int = option(3, "seeds, with one training run of each method per seed", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(hosts, rate) for hosts in self.hosts for rate in self.rates])


def cells(options: SmartNicOptions) -> list[Cell]:
    """Return a cell for each constant, figure, and point of the model, each ring, and each training run."""
    found: list[Cell] = []
    if PAPER in options.parts:
        found += _of_the_paper()
    if RING in options.parts:
        names = ("codec", "nodes", "rounds")
        rings = [dict(zip(names, ring, strict=True)) for ring in RINGS[: options.rings]]
        found += [{"part": RING, **ring, "chunk_words": options.chunk_words} for ring in rings]
    return [*found, *_of_the_testbed(options)] if STEP in options.parts else found


def _of_the_paper() -> list[Cell]:
    prototype = calibrate()
    return [
        *({"part": CONSTANT, "what": each.what} for each in constants(prototype)),
        *({"part": FIGURE, "what": each.what} for each in figures(prototype)),
        *cells_of({"part": SCALING}, batch=BATCHES, nodes=NODES),
    ]


def _of_the_testbed(options: SmartNicOptions) -> list[Cell]:
    """Return the calibration, and the configurations that differ in one value or use the most hosts."""
    (first, *more), (rate, *rates) = options.hosts, options.rates
    (width, *widths), (batch, *batches) = options.widths, options.batches
    most = max(options.hosts)
    common = {"layers": options.layers, "data": at_hand()}
    trained = {"steps": options.steps, "seeds": options.seeds}

    def place(hosts: int, rate: str, width: int, batch: int) -> Cell:
        return {"hosts": hosts, "rate": rate, "width": width, "batch": batch, **common}

    wanted = [
        *((place(first, each, width, batch), NICS) for each in rates),
        *((place(first, rate, each, batch), NICS) for each in widths),
        *((place(first, rate, width, each), NICS) for each in batches),
        *((place(each, rate, width, batch), ALL if each == most else COMPARED) for each in more),
        *((place(most, rate, width, each), COMPARED) for each in batches if most != first),
    ]
    steps: list[Cell] = [
        {"part": STEP, **where, "method": method, "codec": codec, **trained}
        for where, methods in wanted
        for method, codec in methods
    ]
    calibration: Cell = {"part": CALIBRATION, **place(first, rate, width, batch)}
    return sorted([calibration, *steps], key=lambda cell: (cell["hosts"], cell["rate"] != rate))


# The rows of the model: its constants, the published figures, and the curves of figure 4b.

BASELINE, NIC, NIC_BFP = "baseline", "nic", "nic_bfp"
"""The names of the three curves, which show throughput relative to one node."""


def published(cells: Sequence[Cell], report: Report) -> None:
    """Report the rows of the cells that need only the model."""
    prototype = calibrate()
    known = {
        (kind, each.what): asdict(each)
        for kind, found in ((CONSTANT, constants(prototype)), (FIGURE, figures(prototype)))
        for each in found
    }
    for cell in cells:
        values = known[cell["part"], cell["what"]] if "what" in cell else _throughputs(prototype, cell)
        report({**cell, **values})


def _throughputs(prototype: Prototype, cell: Cell) -> dict[str, float]:
    mlp = next(each for each in (SMALL, LARGE) if each.batch == cell["batch"])
    nics = {BASELINE: None, NIC: prototype.uncompressed, NIC_BFP: prototype.bfp}
    return {name: throughput(prototype, mlp, nic, cell["nodes"]) for name, nic in nics.items()}
