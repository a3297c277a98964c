"""Figure 3b: the trace of a step whose layers are exchanged while the next ones compute."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import RATIO, SHARE, Claim, Published, at_most, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins, paper
from gradwire.experiments.smart_nic.options import BLOCKING, LAYERWISE
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s
from gradwire.timing.closed_form.smart_nic import Mlp, Node, Trace, blocking_step, smart_step

if TYPE_CHECKING:
    from gradwire.experiments.smart_nic.steps import Worker
    from gradwire.links import Link

PLACE = "figure 3b"
WORKERS, NBYTES_PER_S, LATENCY_S = 3, 5e6, 1e-4
COMPUTE_OVER_EXCHANGE = {"line bound": 0.4, "compute bound": 1.6}
"""Of a layer's backward pass over its all-reduce."""
WITHIN = 0.1
"""By what a measured step may differ from the model's. Published are 0.03 on six machines."""


@dataclass(frozen=True)
class Options:
    """Layers, their width, and steps of a cell."""

    layers: int
    width: int
    steps: int


@dataclass(frozen=True)
class Line:
    """The paced links as a NIC of the model."""

    def all_reduce_s(self, width: int, nodes: int) -> float:
        """Return the seconds for a layer of ``width`` x ``width`` weights."""
        return ring_s(nodes, 4 * width**2, AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S))


class Noted:
    """A worker whose training thread notes the layers that it computes and updates, from 1 up."""

    def __init__(self, worker: Worker) -> None:
        self.layers, self.buckets = worker.layers, worker.buckets
        self.notes: list[str] = []
        self._worker = worker

    def forward(self) -> None:
        """Compute all layers' outputs."""
        self._worker.forward()

    def backward(self, layer: int, slowdown: float = 1.0) -> None:
        """Compute a layer's gradients."""
        self.notes.append(f"B{layer + 1}")
        self._worker.backward(layer, slowdown)

    def update(self, layer: int) -> None:
        """Apply a layer's averaged gradients."""
        self.notes.append(f"U{layer + 1}")
        self._worker.update(layer)


def cells(options: Options) -> list[Cell]:
    """Return a cell for each share of computation and each method."""
    return [
        {"kind": kind, "method": method, "layers": options.layers, "width": options.width}
        for kind in COMPUTE_OVER_EXCHANGE
        for method in (LAYERWISE, BLOCKING)
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Take steps on threads over paced links; a worker computes for as long as the model's does."""
    import torch

    from gradwire.codecs import parse
    from gradwire.exchange import Exchange
    from gradwire.experiments.papers.threads import on_threads
    from gradwire.experiments.smart_nic.steps import METHODS, Worker
    from gradwire.plan import Plan

    width = cell["width"]
    mlp, line = Mlp((width,) * cell["layers"], 1), Line()
    backward_s = COMPUTE_OVER_EXCHANGE[cell["kind"]] * line.all_reduce_s(width, WORKERS)
    node = Node(4 * width**2 / backward_s, 0.0)
    step, plan = METHODS[cell["method"]], Plan(parse("identity"), "ring", 1 << 24)

    def work(link: Link) -> tuple[list[float], list[str]]:
        exchange, seconds = Exchange(link, plan), list[float]()
        for _ in range(options.steps):
            worker = Noted(Worker(mlp, node, torch.zeros(width**2)))
            began = time.perf_counter()
            step(worker, exchange)  # type: ignore[arg-type]  # it has what a step uses
            seconds.append(time.perf_counter() - began)
        return seconds, worker.notes

    found = on_threads(WORKERS, work, NBYTES_PER_S, LATENCY_S)
    trace = _trace(cell["method"], mlp, node, line)
    return {
        "seconds": [max(each) for each in zip(*(seconds for seconds, _ in found), strict=True)],
        "notes": found[0][1],
        "predicted_s": trace.total_s,
        "predicted_exposed_s": trace.exposed_s,
    }


def _trace(method: str, mlp: Mlp, node: Node, line: Line) -> Trace:
    return (smart_step if method == LAYERWISE else blocking_step)(mlp, node, line, WORKERS)


def published_order(layers: int) -> list[str]:
    """Return the figure's order: a layer is updated as soon as the one below has its gradients."""
    between = [note for layer in range(layers - 1, 0, -1) for note in (f"B{layer}", f"U{layer + 1}")]
    return [f"B{layers}", *between, "U1"]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the order with the figure's, and times with the equation of section IV.C."""
    layered = [row for row in rows if row["method"] == LAYERWISE]
    share = {row["kind"]: _alike(row["notes"], published_order(row["layers"])) for row in layered}
    time_over = {row["kind"]: median(row["seconds"]) / row["predicted_s"] for row in layered}
    own, other = (row_of(rows, kind="compute bound", method=method) for method in (LAYERWISE, BLOCKING))
    exposed_s = other["predicted_exposed_s"]
    left = (median(own["seconds"]) - own["predicted_s"] + own["predicted_exposed_s"]) / exposed_s
    return [
        Claim(
            "backward passes and updates in the trace's order",
            share,
            near(1.0, 0.0),
            of_each=True,
            unit=SHARE,
            published=Published(PLACE),
        ),
        Claim(
            "a step's time over the equation's",
            time_over,
            near(1.0, WITHIN),
            of_each=True,
            unit=RATIO,
            published=Published("section IV.C", 1.0),
        ),
        Claim(
            "compute bound: exchange that is left exposed, of the blocking step's",
            only(left),
            at_most(1 / own["layers"] + WITHIN),
            published=Published(PLACE),
        ),
    ]


def _alike(notes: Sequence[str], wanted: Sequence[str]) -> float:
    """Return the share of places with the same note."""
    same = sum(one == other for one, other in zip(notes, wanted, strict=False))
    return same / max(len(notes), len(wanted))


ORIGINS = origins(
    WORKERS=RUN_TIME,
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    COMPUTE_OVER_EXCHANGE=chosen("on both sides of the balance"),
    WITHIN=chosen("threads of Python; published are 3 % on machines of their own"),
    layers=paper("section V"),
    width=RUN_TIME,
    steps=RUN_TIME,
)
EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "is a layer exchanged while the next one computes, as in the trace?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(6, 256, 3),
    full=Options(20, 512, 9),
    scaling="six layers of 256 x 256 weights (20 of 512 x 512 with --full) instead of 20 of 2048 x "
    "2048; three ranks are threads of one process over links paced to 40 Mbit/s; the worker "
    "waits for as long as the model's computes. What is left exposed, if computation takes "
    "longer, is the first layer's exchange. Figure 3a is a drawing.",
    origins=ORIGINS,
    seconds=(12, 200),
)
