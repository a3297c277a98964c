"""The figures and constants of the smart NIC's paper (arXiv 2204.10943), as published and as modelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from gradwire_lab.text_enum import TextEnum

# The constants of the model, for the prototype that the smart NIC's authors measured.
#
# The paper (arXiv 2204.10943) omits some constants. ``calibrate`` determines four of them from four published
# figures for six nodes; ``figures`` compares all published figures with the model's.

WIDTH, LAYERS = 2048, 20
SMALL = Mlp((WIDTH,) * LAYERS, batch=448)
LARGE = Mlp((WIDTH,) * LAYERS, batch=1792)
BATCHES = (SMALL.batch, LARGE.batch)
FEW, MANY = 6, 32
"""The number of nodes of the prototype, and of the paper's predictions."""

LINE_NBYTES_PER_S, BASELINE_LINE_NBYTES_PER_S = 40e9 / 8, 100e9 / 8
"""The rates of the smart NICs and of the conventional baseline NICs, in bytes per second."""
USABLE_SHARE = 1.0
"""The usable share of the link's rate (the paper's footnote 1: very close to 1)."""

BFP16_COMPRESSION = 16 * 32 / (16 * 8 + 8)
"""The compression ratio of BFP with blocks of 16 floats: 8 bits per float, and 8 shared bits per block."""

PCIE_3_X8_NBYTES_PER_S = 2 * 8 * 8e9 * 128 / 130 / 8
"""The rate of PCIe Gen3 x8 in both directions: eight lanes at 8 GT/s each, coded 128b/130b."""

PEAK_FLOPS_PER_S = 28 * 2.4e9 * 64
"""The peak rate of 28 cores with two AVX-512 units at 2.4 GHz."""

BACKWARD_SLOWDOWN = 1.11
"""The slowdown of the backward pass without two of 28 cores (figure 2a)."""

LANES = 8
"""The number of the NIC's adders, for words of 256 bits."""

UPDATE_S_PER_PARAMETER = 0.0
"""The time to update a parameter: by figure 4a, at most about 0.3 % of a step; see ``docs/timing.md``."""


@dataclass(frozen=True, slots=True)
class Prototype:
    """The calibrated node, its conventional NIC (blocking or overlapped exchange), and its smart NIC."""

    node: Node
    blocking: PlainNic
    overlapped: PlainNic
    uncompressed: SmartNic
    bfp: SmartNic


@cache
def calibrate() -> Prototype:
    """Return the prototype with the omitted constants derived from the paper's figures.

    Without compression, the computing rate is fitted to 18 % less time, and the overlapped exchange's rate to
    37 % less exposed time. The adders' rate is fitted to 95 % less exposed time with compression, and the
    blocking exchange's rate to its exposed share of 51 %. No constant is fitted to a figure of more than six
    nodes.
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
    """Return the step with conventional NICs, with two of 28 cores for the exchange and the updates."""
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
    """Return the argument at which an increasing function equals ``wanted``, by logarithmic bisection."""
    least, most = 1e6, 1e15
    for _ in range(100):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if rising(middle) < wanted else (least, middle)
    return middle


class How(TextEnum):
    """The relation between the model's figure and the published figure."""

    PREDICTED = "predicted"
    CALIBRATED = "calibrated"
    """A constant was fitted to this figure, or to figures of the same measurement."""
    ARITHMETIC = "arithmetic"
    """The figure follows from another published figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure, its source, the model's figure, and the reason if both agree by construction."""

    what: str
    source: str
    published: float
    model: float
    how: How = How.PREDICTED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the model, in words, with its source.

    ``omitted`` is true if the paper doesn't state the constant; ``source`` is then the figure from which the
    constant was derived.
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
    """Return all constants of the model, including those that the paper omits."""
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
    """Return the speed-up of a step with smart NICs over the overlapped baseline."""
    before = baseline_step(mlp, prototype.node, prototype.overlapped, nodes)
    return before.total_s / smart_step(mlp, prototype.node, nic, nodes).total_s


def throughput(prototype: Prototype, mlp: Mlp, nic: SmartNic | None, nodes: int) -> float:
    """Return the throughput of ``nodes`` nodes relative to one node without exchanges (figure 4b).

    If ``nic`` is None, the nodes use the overlapped baseline.
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
    """Return the published figures with the model's figures for ``prototype``."""
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
