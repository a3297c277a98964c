"""Training steps with the all-reduce in the NIC, and the paper's two baselines.

The model is from Ma and others, FPGA-based AI smart NICs (arXiv 2204.10943), section IV.C, for a perceptron
with square layers. Each docstring contains the function's equation. Layers are numbered from the input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Mlp:
    """A perceptron with layers of ``widths[l]``^2 weights, trained on ``batch`` samples per step."""

    widths: tuple[int, ...]
    batch: int


@dataclass(frozen=True, slots=True)
class Node:
    """A worker with its computing rate on all cores, and its time to update a parameter."""

    flops_per_s: float
    update_s_per_parameter: float

    def forward_s(self, width: int, batch: int) -> float:
        """Return ``T_F = 2 M^2 B / P_worker``."""
        return 2 * width**2 * batch / self.flops_per_s

    def backward_s(self, width: int, batch: int) -> float:
        """Return ``T_B = 4 M^2 B / P_worker``."""
        return 4 * width**2 * batch / self.flops_per_s

    def update_s(self, width: int) -> float:
        """Return ``T_U``, which is linear in the parameters."""
        return width**2 * self.update_s_per_parameter


class Nic(Protocol):
    """The time model of a NIC that all-reduces a layer's gradients between nodes."""

    def all_reduce_s(self, width: int, nodes: int) -> float:
        """Return the seconds to all-reduce a layer of ``width`` x ``width`` weights."""
        ...


@dataclass(frozen=True, slots=True)
class SmartNic:
    """A NIC that runs the ring all-reduce itself.

    Parameters
    ----------
    line_nbytes_per_s
        The link's rate in each direction, BW_eth.
    usable_share
        The usable share of the link's rate, from 0 to 1; alpha in the paper.
    compression
        The compression ratio on the wire; beta in the paper.
    adds_per_s
        The number of float additions that the NIC does per second, P_FPGA.
    pcie_nbytes_per_s
        The rate between the NIC and the worker's memory, both directions together, BW_pcie.
    """

    line_nbytes_per_s: float
    usable_share: float
    compression: float
    adds_per_s: float
    pcie_nbytes_per_s: float

    def ring_s(self, nbytes: float, nodes: int) -> float:
        """Return ``T_ring = R 2 (N - 1) / (N alpha BW_eth beta)`` for R of ``nbytes``."""
        rate = self.usable_share * self.line_nbytes_per_s * self.compression
        return nbytes * 2 * (nodes - 1) / (nodes * rate)

    def add_s(self, nbytes: float, nodes: int) -> float:
        """Return ``T_add = R 2 (N - 1) / (N P_FPGA b)``. In the paper, both halves of the ring add."""
        return nbytes * 2 * (nodes - 1) / (nodes * self.adds_per_s * _FLOAT_NBYTES)

    def memory_s(self, nbytes: float) -> float:
        """Return ``T_mem = 2 R / BW_pcie``: every gradient is read once and written once."""
        return 2 * nbytes / self.pcie_nbytes_per_s

    def exchange_s(self, nbytes: float, nodes: int) -> float:
        """Return ``T_AR = max(T_ring, T_add, T_mem)``: sending, adding, and memory access are concurrent."""
        return max(self.ring_s(nbytes, nodes), self.add_s(nbytes, nodes), self.memory_s(nbytes))

    def all_reduce_s(self, width: int, nodes: int) -> float:
        """Return ``T_AR`` for a layer of ``width`` x ``width`` weights."""
        return self.exchange_s(padded_nbytes(width, nodes), nodes)


@dataclass(frozen=True, slots=True)
class RingCircuit:
    """A ring circuit that moves a word of ``lanes`` floats per cycle in every stage.

    ``compression`` is the compression ratio on the wire, as in ``SmartNic``. ``decoded`` is the number of
    chunks per all-reduce that pass the decompressor. ``latency`` is the number of cycles per all-reduce in
    which words are in flight without new input.
    """

    lanes: int
    compression: float
    decoded: int
    latency: float = 0.0

    @property
    def nic(self) -> SmartNic:
        """The circuit as a ``SmartNic`` whose time unit is the cycle."""
        word_nbytes = _FLOAT_NBYTES * self.lanes
        return SmartNic(word_nbytes, 1.0, self.compression, self.lanes, 2 * word_nbytes)

    def cycles(self, nodes: int, chunk_words: int, rounds: int = 1) -> float:
        """Return the cycles of ``rounds`` all-reduces, each of its slowest stage and latency, and a chunk."""
        nbytes = _FLOAT_NBYTES * self.lanes * chunk_words * nodes
        moving = max(self.nic.exchange_s(nbytes, nodes), self.decoded * chunk_words)
        return chunk_words + rounds * (moving + self.latency)


@dataclass(frozen=True, slots=True)
class PlainNic:
    """A conventional NIC; ``nbytes_per_s`` is the rate of the ring, additions included, on the cores."""

    nbytes_per_s: float

    def all_reduce_s(self, width: int, nodes: int) -> float:
        """Return ``2 (N - 1) R / (N rate)``."""
        return 2 * (nodes - 1) * padded_nbytes(width, nodes) / nodes / self.nbytes_per_s


@dataclass(frozen=True, slots=True)
class Trace:
    """The seconds of a training step by the worker's activity. ``exposed_s`` is the wait for gradients."""

    forward_s: float
    backward_s: float
    update_s: float
    exposed_s: float

    @property
    def total_s(self) -> float:
        """The step time in seconds."""
        return self.forward_s + self.backward_s + self.update_s + self.exposed_s


_FLOAT_NBYTES = 4


def padded_nbytes(width: int, nodes: int) -> int:
    """Return ``R = b N ceil(M^2 / N)`` in bytes: a layer's gradients, padded to equal chunks."""
    return _FLOAT_NBYTES * nodes * math.ceil(width**2 / nodes)


def smart_step(mlp: Mlp, node: Node, nic: Nic, nodes: int) -> Trace:
    """Return the step of a worker whose NIC exchanges a layer while the worker computes the next layer.

    ``T_total = sum T_F + T_B[L] + max(T_B[L-1], T_AR[L]) + sum over l = 2..L-1 of
    max(T_U[l+1] + T_B[l-1], T_AR[l]) + max(T_U[2], T_AR[1]) + T_U[1]``: a layer's all-reduce runs while the
    layer above is updated and the layer below computes its gradients.
    """
    forward_s = sum(node.forward_s(width, mlp.batch) for width in mlp.widths)
    backward = [node.backward_s(width, mlp.batch) for width in mlp.widths]
    update = [node.update_s(width) for width in mlp.widths]
    exposed_s = 0.0
    for layer, width in enumerate(mlp.widths):
        below_s = backward[layer - 1] if layer > 0 else 0.0
        above_s = update[layer + 1] if layer + 1 < len(update) else 0.0
        exposed_s += max(0.0, nic.all_reduce_s(width, nodes) - above_s - below_s)
    return Trace(forward_s, sum(backward), sum(update), exposed_s)


def blocking_step(mlp: Mlp, node: Node, nic: Nic, nodes: int) -> Trace:
    """Return the naive step: all cores compute, and then wait for the all-reduce of every layer."""
    return Trace(
        sum(node.forward_s(width, mlp.batch) for width in mlp.widths),
        sum(node.backward_s(width, mlp.batch) for width in mlp.widths),
        sum(node.update_s(width) for width in mlp.widths),
        sum(nic.all_reduce_s(width, nodes) for width in mlp.widths),
    )


def overlapped_step(mlp: Mlp, node: Node, nic: Nic, nodes: int, *, slowdown: float) -> Trace:
    """Return the step in which some cores only exchange and update, while the other cores run backward.

    ``slowdown`` is the slowdown of backward without those cores: 28/26 for 2 of 28 cores, if only the number
    of cores matters. Layers are exchanged from the last to the first. Backward hides updates and exchanges;
    the remainder of both is exposed.
    """
    computed_s = exchanged_s = 0.0
    for width in reversed(mlp.widths):
        computed_s += node.backward_s(width, mlp.batch) * slowdown
        exchanged_s = max(exchanged_s, computed_s) + nic.all_reduce_s(width, nodes) + node.update_s(width)
    forward_s = sum(node.forward_s(width, mlp.batch) for width in mlp.widths)
    return Trace(forward_s, computed_s, 0.0, exchanged_s - computed_s)
