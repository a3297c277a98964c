"""The figures and constants of the smart NIC's paper (arXiv 2204.10943), as published and as modelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from gradwire_lab.closed_forms.smart_nic import (
    Mlp,
    Node,
    PlainNic,
    SmartNic,
    Trace,
    blocking_step,
    overlapped_step,
    smart_step,
)

# The prototype that the smart NIC's authors measured, as the constants of the model.
#
# The paper (arXiv 2204.10943) leaves constants open. ``calibrate`` determines four of them from four of its
# figures of six nodes; ``smart_nic_figures`` compares all figures with the model's.

WIDTH, LAYERS = 2048, 20
SMALL = Mlp((WIDTH,) * LAYERS, batch=448)
LARGE = Mlp((WIDTH,) * LAYERS, batch=1792)
BATCHES = (SMALL.batch, LARGE.batch)
FEW, MANY = 6, 32
"""The nodes of the prototype, and the numbers of nodes that the paper predicts for."""

LINE_NBYTES_PER_S, BASELINE_LINE_NBYTES_PER_S = 40e9 / 8, 100e9 / 8
"""Rates of the smart NICs, and of the conventional ones that they are compared with."""
USABLE_SHARE = 1.0
"""Footnote 1: very close to 1."""

BFP16_COMPRESSION = 16 * 32 / (16 * 8 + 8)
"""Blocks of 16 floats: 8 bits each and 8 shared."""

PCIE_3_X8_NBYTES_PER_S = 2 * 8 * 8e9 * 128 / 130 / 8
"""Two directions of eight lanes at 8 GT/s, coded 128b/130b."""

PEAK_FLOPS_PER_S = 28 * 2.4e9 * 64
"""28 cores with two AVX-512 units at 2.4 GHz."""

BACKWARD_SLOWDOWN = 1.11
"""Figure 2a: the slowdown of the backward pass with two of 28 cores less."""

LANES = 8
"""The NIC's adders, for words of 256 bits."""

UPDATE_S_PER_PARAMETER = 0.0
"""The published shares of figure 4a leave at most about 0.3 % of a step for it; see ``docs/timing.md``."""


@dataclass(frozen=True, slots=True)
class Prototype:
    """The node, its conventional NIC driven by all cores in turn or by two of its own, and the smart NIC."""

    node: Node
    blocking: PlainNic
    overlapped: PlainNic
    uncompressed: SmartNic
    bfp: SmartNic


@cache
def calibrate() -> Prototype:
    """Return the prototype whose open constants are those that the paper's figures imply.

    The computing rate and the rate of the overlapped exchange meet 18 % less time and 37 % less exposed time
    without compression; the adders' rate 95 % less exposed time with it; and the rate of the blocking
    exchange its 51 %. No figure of more than six nodes sets a constant.
    """
    nic = SmartNic(LINE_NBYTES_PER_S, USABLE_SHARE, 1.0, _PLENTY, PCIE_3_X8_NBYTES_PER_S)
    flops_per_s = _solve(lambda flops: 1 - _small_gain(nic, Node(flops, UPDATE_S_PER_PARAMETER)), 0.18)
    node = Node(flops_per_s, UPDATE_S_PER_PARAMETER)
    overlapped = _overlapped_nic(nic, node)
    before_s = baseline_step(SMALL, node, overlapped, FEW).exposed_s
    bfp = replace(nic, compression=BFP16_COMPRESSION)
    adds_per_s = _solve(
        lambda adds: 1 - smart_step(SMALL, node, replace(bfp, adds_per_s=adds), FEW).exposed_s / before_s,
        0.95,
    )
    nic, bfp = replace(nic, adds_per_s=adds_per_s), replace(bfp, adds_per_s=adds_per_s)
    return Prototype(node, _blocking_nic(node), overlapped, nic, bfp)


_PLENTY = 1e15


def _small_gain(nic: SmartNic, node: Node) -> float:
    before_s = baseline_step(SMALL, node, _overlapped_nic(nic, node), FEW).total_s
    return smart_step(SMALL, node, nic, FEW).total_s / before_s


def baseline_step(mlp: Mlp, node: Node, nic: PlainNic, nodes: int) -> Trace:
    """Return the step with conventional NICs, for which two of 28 cores exchange and update."""
    return overlapped_step(mlp, node, nic, nodes, slowdown=BACKWARD_SLOWDOWN)


def _overlapped_nic(nic: SmartNic, node: Node) -> PlainNic:
    after_s = smart_step(SMALL, node, nic, FEW).exposed_s

    def left(rate: float) -> float:
        return after_s / baseline_step(SMALL, node, PlainNic(rate), FEW).exposed_s

    return PlainNic(_solve(left, 1 - 0.37))


def _blocking_nic(node: Node) -> PlainNic:
    def share(rate: float) -> float:
        trace = blocking_step(LARGE, node, PlainNic(rate), FEW)
        return -trace.exposed_s / trace.total_s

    return PlainNic(_solve(share, -0.51))


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    """Return where a rising function has the value ``wanted``, by halving on a logarithmic scale."""
    least, most = 1e6, 1e15
    for _ in range(100):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if rising(middle) < wanted else (least, middle)
    return middle


class How(StrEnum):
    """The way in which the model comes to a figure."""

    PREDICTED = "predicted"
    CALIBRATED = "calibrated"
    """A constant was set from it, or all of them from figures of the same measurement."""
    ARITHMETIC = "arithmetic"
    """A published figure in other words."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, where the paper publishes it, what the model says, and why it may hold by construction."""

    what: str
    source: str
    published: float
    model: float
    how: How = How.PREDICTED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the model, in words, and where it comes from.

    ``omitted`` is true if the paper doesn't say it; ``source`` is then what it was derived from.
    """

    what: str
    value: str
    source: str
    omitted: bool = False


ERRATA = (
    "The compression of 3.8x is 512 / 136 = 3.76x.",
    "T_add counts additions in both halves of the ring; in the second half, sums are only copied.",
    "A ring sends its first chunk before one arrives, so T_AR is one chunk longer than the formula's.",
    "The speed-ups of figure 4b compare a NIC of 40 Gbit/s with a baseline of 100 Gbit/s.",
)
SPEEDUPS = ((SMALL, FEW, 1.6), (SMALL, MANY, 2.5), (LARGE, FEW, 1.1), (LARGE, MANY, 1.4))
"""The speed-ups that the paper publishes for smart NICs with BFP, by network and nodes."""


def constants(prototype: Prototype) -> list[Constant]:
    """Return all constants of the model, with those that the paper omits."""
    plain, bfp = prototype.overlapped, prototype.bfp
    flops_per_s, lane = prototype.node.flops_per_s, bfp.adds_per_s / LANES
    share = 100 * flops_per_s / PEAK_FLOPS_PER_S
    return [
        Constant("NIC: rate", f"{8e-9 * bfp.line_nbytes_per_s:g} Gbit/s", "section V.A"),
        Constant("NIC: usable share (alpha)", f"{bfp.usable_share:g}", "footnote 1: very close to 1"),
        Constant(
            "NIC: compression (beta)", f"{bfp.compression:.2f}", "blocks of 16, 8 bits each and 8 shared"
        ),
        Constant("backward with two cores of 28 less", f"{BACKWARD_SLOWDOWN:g} x", "figure 2a"),
        Constant(
            "PCIe, both directions",
            f"{1e-9 * bfp.pcie_nbytes_per_s:.2f} GB/s",
            "Gen3 x8 (section V.A), 128b/130b",
            omitted=True,
        ),
        Constant(
            "update of a parameter",
            f"{UPDATE_S_PER_PARAMETER:g} s",
            "the shares of figure 4a leave no more",
            omitted=True,
        ),
        Constant(
            "worker: computation (P_worker)",
            f"{1e-12 * flops_per_s:.2f} Tflop/s, {share:.0f} % of 28 cores' peak",
            "18 % of the step saved",
            omitted=True,
        ),
        Constant(
            "host's ring, two cores: rate",
            f"{1e-9 * plain.nbytes_per_s:.2f} GB/s of {1e-9 * BASELINE_LINE_NBYTES_PER_S:g}",
            "37 % of the exposed time saved",
            omitted=True,
        ),
        Constant(
            "host's ring, all cores in turn: rate",
            f"{1e-9 * prototype.blocking.nbytes_per_s:.2f} GB/s",
            "51 % of the naive step exposed",
            omitted=True,
        ),
        Constant(
            "NIC: adders (P_FPGA)",
            f"{1e-9 * bfp.adds_per_s:.2f} G additions/s, {LANES} lanes at {1e-6 * lane:.0f} MHz",
            "95 % of the exposed time saved",
            omitted=True,
        ),
    ]


def speedup(prototype: Prototype, mlp: Mlp, nic: SmartNic, nodes: int) -> float:
    """Return how many times shorter a step is with smart NICs than with the overlapped baseline."""
    before = baseline_step(mlp, prototype.node, prototype.overlapped, nodes)
    return before.total_s / smart_step(mlp, prototype.node, nic, nodes).total_s


def throughput(prototype: Prototype, mlp: Mlp, nic: SmartNic | None, nodes: int) -> float:
    """Return the samples per second of ``nodes`` nodes over those of a node that exchanges nothing.

    With None, the nodes are the overlapped baseline's (figure 4b).
    """
    node = prototype.node
    alone_s = sum(
        node.forward_s(width, mlp.batch) + node.backward_s(width, mlp.batch) + node.update_s(width)
        for width in mlp.widths
    )
    if nic is None:
        return nodes * alone_s / baseline_step(mlp, node, prototype.overlapped, nodes).total_s
    return nodes * alone_s / smart_step(mlp, node, nic, nodes).total_s


def figures(prototype: Prototype) -> list[Figure]:
    """Return the published figures and the model's figures for ``prototype``."""
    return [*_profile(prototype), *_bars(prototype), *_scaling(prototype)]


def _profile(prototype: Prototype) -> list[Figure]:
    source, node = "section III, figure 2a", prototype.node
    naive = blocking_step(LARGE, node, prototype.blocking, FEW)
    large = baseline_step(LARGE, node, prototype.overlapped, FEW)
    return [
        Figure(
            "naive, batch 1792: exposed part of the step",
            source,
            0.51,
            naive.exposed_s / naive.total_s,
            How.CALIBRATED,
            "the rate of the blocking exchange is set from it",
        ),
        Figure(
            "overlapped, batch 1792: speedup over naive",
            source,
            1.85,
            naive.total_s / large.total_s,
            How.CALIBRATED,
            "the exposed 51 % and backward's 11 % are the same figure's",
        ),
        Figure(
            "overlapped, batch 1792: exposed time, naive over it",
            source,
            50,
            naive.exposed_s / large.exposed_s,
        ),
    ]


def _bars(prototype: Prototype) -> list[Figure]:
    source, node = "section V.B, figure 4a", prototype.node
    small = baseline_step(SMALL, node, prototype.overlapped, FEW)
    plain = smart_step(SMALL, node, prototype.uncompressed, FEW)
    packed = smart_step(SMALL, node, prototype.bfp, FEW)
    return [
        Figure(
            "NIC, batch 448: part of the step saved",
            source,
            0.18,
            1 - plain.total_s / small.total_s,
            How.CALIBRATED,
            "P_worker is set from it",
        ),
        Figure(
            "NIC, batch 448: exposed time saved",
            source,
            0.37,
            1 - plain.exposed_s / small.exposed_s,
            How.CALIBRATED,
            "the rate of the overlapped exchange is set from it",
        ),
        Figure(
            "NIC, batch 448: backward saved",
            source,
            0.10,
            1 - plain.backward_s / small.backward_s,
            How.ARITHMETIC,
            "1 - 1 / 1.11, the slowdown of figure 2a",
        ),
        Figure(
            "NIC + BFP, batch 448: part of the step saved",
            source,
            0.40,
            1 - packed.total_s / small.total_s,
            How.CALIBRATED,
            "it follows from 18, 37, and 95 % of the same figure and from 11 %",
        ),
        Figure(
            "NIC + BFP, batch 448: exposed time saved",
            source,
            0.95,
            1 - packed.exposed_s / small.exposed_s,
            How.CALIBRATED,
            "P_FPGA is set from it",
        ),
    ]


def _scaling(prototype: Prototype) -> list[Figure]:
    source = "section V.B, figure 4b"
    known = {
        (SMALL, FEW): (How.CALIBRATED, "1 / (1 - 0.40), of figure 4a's measurement"),
        (LARGE, FEW): (How.ARITHMETIC, "1/3 + 2/3 x 1.11, as nearly all of the exchange is hidden"),
    }
    without = speedup(prototype, SMALL, prototype.uncompressed, MANY)
    return [
        Figure("NIC, batch 448, 32 nodes: speedup", source, 1.8, without),
        *(
            Figure(
                f"NIC + BFP, batch {mlp.batch}, {nodes} nodes: speedup",
                source,
                published,
                speedup(prototype, mlp, prototype.bfp, nodes),
                *known.get((mlp, nodes), ()),
            )
            for mlp, nodes, published in SPEEDUPS
        ),
    ]
