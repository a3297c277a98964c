"""The prototype that the smart NIC's authors measured: its constants, and published and modelled figures.

The paper (arXiv 2204.10943) leaves five constants open. ``calibrate`` determines them from five of its
figures; ``figures`` then computes all figures, the others as predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gradwire.timing.closed_form.smart_nic import (
    Mlp,
    Node,
    PlainNic,
    SmartNic,
    Trace,
    blocking_step,
    overlapped_step,
    padded_nbytes,
    smart_step,
)

WIDTH, LAYERS = 2048, 20
SMALL = Mlp((WIDTH,) * LAYERS, batch=448)
LARGE = Mlp((WIDTH,) * LAYERS, batch=1792)
FEW, MANY = 6, 32
"""The nodes of the prototype, and the numbers of nodes that the paper predicts for."""

LINE_NBYTES_PER_S = 40e9 / 8
USABLE_SHARE = 1.0
"""Footnote 1: very close to 1."""

BFP16_COMPRESSION = 16 * 32 / (16 * 8 + 8)
"""Blocks of 16 floats: 8 bits each and 8 shared."""

PCIE_3_X8_NBYTES_PER_S = 2 * 8 * 8e9 * 128 / 130 / 8
"""Two directions of eight lanes at 8 GT/s, coded 128b/130b."""

BACKWARD_SLOWDOWN = 1.11
"""Figure 2a: the slowdown of the backward pass with two of 28 cores less."""

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


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure and the model's; ``calibrated`` if the constants were chosen to meet it."""

    what: str
    published: float
    model: float
    calibrated: bool = False


def calibrate() -> Prototype:
    """Return the prototype whose open constants are those that the paper's figures imply.

    The computing rate and the rate of the overlapped exchange meet 18 % less time and 37 % less exposed time
    without compression; the adders' rate 95 % less exposed time with it; the rate of the blocking exchange
    its 51 %; and what a step of a software ring costs beyond its bytes 1.8x at 32 nodes.
    """
    nic = SmartNic(LINE_NBYTES_PER_S, USABLE_SHARE, 1.0, _PLENTY, PCIE_3_X8_NBYTES_PER_S)
    flops_per_s = _solve(lambda flops: 1 - _small_gain(nic, Node(flops, UPDATE_S_PER_PARAMETER)), 0.18)
    node = Node(flops_per_s, UPDATE_S_PER_PARAMETER)
    overlapped = _overlapped_nic(nic, node)
    before_s = _overlapped(SMALL, node, overlapped, FEW).exposed_s
    bfp = replace(nic, compression=BFP16_COMPRESSION)
    adds_per_s = _solve(
        lambda adds: 1 - smart_step(SMALL, node, replace(bfp, adds_per_s=adds), FEW).exposed_s / before_s,
        0.95,
    )
    nic, bfp = replace(nic, adds_per_s=adds_per_s), replace(bfp, adds_per_s=adds_per_s)
    return Prototype(node, _blocking_nic(node), _with_step(overlapped, nic, node), nic, bfp)


_PLENTY = 1e15


def _small_gain(nic: SmartNic, node: Node) -> float:
    before_s = _overlapped(SMALL, node, _overlapped_nic(nic, node), FEW).total_s
    return smart_step(SMALL, node, nic, FEW).total_s / before_s


def _overlapped(mlp: Mlp, node: Node, nic: PlainNic, nodes: int) -> Trace:
    return overlapped_step(mlp, node, nic, nodes, slowdown=BACKWARD_SLOWDOWN)


def _overlapped_nic(nic: SmartNic, node: Node) -> PlainNic:
    after_s = smart_step(SMALL, node, nic, FEW).exposed_s

    def left(rate: float) -> float:
        return after_s / _overlapped(SMALL, node, PlainNic(rate, 0.0), FEW).exposed_s

    return PlainNic(_solve(left, 1 - 0.37), 0.0)


def _blocking_nic(node: Node) -> PlainNic:
    def share(rate: float) -> float:
        trace = blocking_step(LARGE, node, PlainNic(rate, 0.0), FEW)
        return -trace.exposed_s / trace.total_s

    return PlainNic(_solve(share, -0.51), 0.0)


def _with_step(overlapped: PlainNic, nic: SmartNic, node: Node) -> PlainNic:
    """Move part of the time at ``FEW`` nodes from the bytes to the steps, so that ``MANY`` fits, too."""
    hop_s = overlapped.all_reduce_s(WIDTH, FEW) / (2 * (FEW - 1))
    chunk_nbytes = padded_nbytes(WIDTH, FEW) / FEW
    after_s = smart_step(SMALL, node, nic, MANY).total_s

    def split(step_s: float) -> PlainNic:
        return PlainNic(chunk_nbytes / (hop_s - step_s), step_s)

    def gain(part: float) -> float:
        return _overlapped(SMALL, node, split(part * hop_s), MANY).total_s / after_s

    return split(_solve(gain, 1.8, least=1e-9, most=1 - 1e-9) * hop_s)


def _solve(
    rising: Callable[[float], float], wanted: float, *, least: float = 1e6, most: float = 1e15
) -> float:
    """Return where a rising function has the value ``wanted``, by halving on a logarithmic scale."""
    for _ in range(100):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if rising(middle) < wanted else (least, middle)
    return middle


def figures(prototype: Prototype) -> list[Figure]:
    """Return the published figures and the model's figures for ``prototype``."""
    node, nic, bfp = prototype.node, prototype.uncompressed, prototype.bfp
    naive = blocking_step(LARGE, node, prototype.blocking, FEW)
    large = _overlapped(LARGE, node, prototype.overlapped, FEW)
    small = _overlapped(SMALL, node, prototype.overlapped, FEW)
    plain, packed = smart_step(SMALL, node, nic, FEW), smart_step(SMALL, node, bfp, FEW)

    def speedup(mlp: Mlp, smart: SmartNic, nodes: int) -> float:
        before = _overlapped(mlp, node, prototype.overlapped, nodes)
        return before.total_s / smart_step(mlp, node, smart, nodes).total_s

    return [
        Figure("naive, batch 1792: exposed part of the step", 0.51, naive.exposed_s / naive.total_s, True),
        Figure("overlapped, batch 1792: speedup over naive", 1.85, naive.total_s / large.total_s),
        Figure("overlapped, batch 1792: exposed time, naive over it", 50, naive.exposed_s / large.exposed_s),
        Figure("NIC, batch 448: part of the step saved", 0.18, 1 - plain.total_s / small.total_s, True),
        Figure("NIC, batch 448: exposed time saved", 0.37, 1 - plain.exposed_s / small.exposed_s, True),
        Figure("NIC, batch 448: backward saved", 0.10, 1 - plain.backward_s / small.backward_s),
        Figure("NIC + BFP, batch 448: part of the step saved", 0.40, 1 - packed.total_s / small.total_s),
        Figure(
            "NIC + BFP, batch 448: exposed time saved", 0.95, 1 - packed.exposed_s / small.exposed_s, True
        ),
        Figure("NIC + BFP, batch 448, 6 nodes: speedup", 1.6, speedup(SMALL, bfp, FEW)),
        Figure("NIC, batch 448, 32 nodes: speedup", 1.8, speedup(SMALL, nic, MANY), True),
        Figure("NIC + BFP, batch 448, 32 nodes: speedup", 2.5, speedup(SMALL, bfp, MANY)),
        Figure("NIC, batch 1792, 6 nodes: speedup", 1.1, speedup(LARGE, nic, FEW)),
        Figure("NIC, batch 1792, 32 nodes: speedup", 1.4, speedup(LARGE, nic, MANY)),
    ]
