"""The prototype that the smart NIC's authors measured, as the constants of the model.

The paper (arXiv 2204.10943) leaves constants open. ``calibrate`` determines four of them from four of its
figures of six nodes; ``smart_nic_figures`` compares all figures with the model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from gradwire.timing.closed_form.smart_nic import (
    Mlp,
    Node,
    PlainNic,
    SmartNic,
    Trace,
    blocking_step,
    overlapped_step,
    smart_step,
)

WIDTH, LAYERS = 2048, 20
SMALL = Mlp((WIDTH,) * LAYERS, batch=448)
LARGE = Mlp((WIDTH,) * LAYERS, batch=1792)
BATCHES = (SMALL.batch, LARGE.batch)
FEW, MANY = 6, 32
"""The nodes of the prototype, and the numbers of nodes that the paper predicts for."""

LINE_NBYTES_PER_S, BASELINE_LINE_NBYTES_PER_S = 40e9 / 8, 100e9 / 8
"""Of the smart NICs, and of the conventional ones that they are compared with."""
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


def _solve(
    rising: Callable[[float], float], wanted: float, *, least: float = 1e6, most: float = 1e15
) -> float:
    """Return where a rising function has the value ``wanted``, by halving on a logarithmic scale."""
    for _ in range(100):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if rising(middle) < wanted else (least, middle)
    return middle
