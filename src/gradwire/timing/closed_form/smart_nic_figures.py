"""The figures and constants of the smart NIC's paper (arXiv 2204.10943), as published and as modelled."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.timing.closed_form.smart_nic import Mlp, SmartNic, blocking_step, smart_step
from gradwire.timing.closed_form.smart_nic_prototype import (
    BACKWARD_SLOWDOWN,
    BASELINE_LINE_NBYTES_PER_S,
    FEW,
    LANES,
    LARGE,
    MANY,
    PEAK_FLOPS_PER_S,
    SMALL,
    UPDATE_S_PER_PARAMETER,
    Prototype,
    baseline_step,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, where the paper publishes it, and what the model says.

    ``calibrated`` is true if the constants were chosen to meet it.
    """

    what: str
    source: str
    published: float
    model: float
    calibrated: bool = False


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
            "host's ring, two cores: a step, in which all cores stop",
            f"{1e6 * plain.step_s:.0f} us",
            "1.8x at 32 nodes, batch 448",
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
    node, nic, bfp = prototype.node, prototype.uncompressed, prototype.bfp
    naive = blocking_step(LARGE, node, prototype.blocking, FEW)
    large = baseline_step(LARGE, node, prototype.overlapped, FEW)
    small = baseline_step(SMALL, node, prototype.overlapped, FEW)
    plain, packed = smart_step(SMALL, node, nic, FEW), smart_step(SMALL, node, bfp, FEW)
    profile, bars, scaling = "section III, figure 2a", "section V.B, figure 4a", "section V.B, figure 4b"
    backward_saved = 1 - plain.backward_s / small.backward_s
    return [
        Figure(
            "naive, batch 1792: exposed part of the step",
            profile,
            0.51,
            naive.exposed_s / naive.total_s,
            True,
        ),
        Figure("overlapped, batch 1792: speedup over naive", profile, 1.85, naive.total_s / large.total_s),
        Figure(
            "overlapped, batch 1792: exposed time, naive over it",
            profile,
            50,
            naive.exposed_s / large.exposed_s,
        ),
        Figure("NIC, batch 448: part of the step saved", bars, 0.18, 1 - plain.total_s / small.total_s, True),
        Figure("NIC, batch 448: exposed time saved", bars, 0.37, 1 - plain.exposed_s / small.exposed_s, True),
        Figure("NIC, batch 448: backward saved", bars, 0.10, backward_saved),
        Figure(
            "NIC + BFP, batch 448: part of the step saved", bars, 0.40, 1 - packed.total_s / small.total_s
        ),
        Figure(
            "NIC + BFP, batch 448: exposed time saved",
            bars,
            0.95,
            1 - packed.exposed_s / small.exposed_s,
            True,
        ),
        Figure("NIC, batch 448, 32 nodes: speedup", scaling, 1.8, speedup(prototype, SMALL, nic, MANY), True),
        *(
            Figure(
                f"NIC + BFP, batch {mlp.batch}, {nodes} nodes: speedup",
                scaling,
                published,
                speedup(prototype, mlp, bfp, nodes),
            )
            for mlp, nodes, published in SPEEDUPS
        ),
    ]
