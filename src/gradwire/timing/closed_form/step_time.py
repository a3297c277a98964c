"""The time of training steps in which computation hides part of the exchange.

The first half contains the models of Pipe-SGD (NeurIPS 2018), where ``iterations`` is T, ``update_s`` is
l_up, ``compute_s`` is l_comp (forward and backward together), and ``communicate_s`` is l_comm. The second
half follows the buckets of a backward pass, and INCEPTIONN's steps with an aggregator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.timing.closed_form.formulas import AlphaBetaGamma, segmented_ring_s


def sync_s(iterations: int, *, update_s: float, compute_s: float, communicate_s: float) -> float:
    """Return ``T (l_up + l_comp + l_comm)``: nothing overlaps. Source: Pipe-SGD, equation 2."""
    return iterations * (update_s + compute_s + communicate_s)


def pipelined_unlimited_s(
    iterations: int, pipeline: int, *, update_s: float, compute_s: float, communicate_s: float
) -> float:
    """Return ``T/K (l_up + l_comp + l_comm)``: K steps at once, each with its own resources.

    Source: Pipe-SGD, equation 3; a lower bound that no rank with one device and one port reaches for K > 2.
    """
    return sync_s(iterations, update_s=update_s, compute_s=compute_s, communicate_s=communicate_s) / pipeline


def pipelined_s(iterations: int, *, update_s: float, compute_s: float, communicate_s: float) -> float:
    """Return ``T max(l_up + l_comp, l_comm)``: either the device or the port is always busy.

    Holds for every K from 2 up, after the pipeline has filled. Source: Pipe-SGD, equation 4.
    """
    return iterations * max(update_s + compute_s, communicate_s)


def segmented_exchange_s(
    iterations: int,
    *,
    update_s: float,
    forward_s: float,
    first_backward_s: float,
    world: int,
    nbytes: float,
    link: AlphaBetaGamma,
    segments: int,
    synchronisation_s: float = 0.0,
) -> float:
    """Return the seconds of a pipeline that exchanges every segment as soon as backward has produced it.

    ``T max(l_up + l_for + l_b, 2 (p - 1) L alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma + L S)``, where
    ``first_backward_s``, l_b, is the backward pass of only the first segment. Because the equation omits the
    rest of the backward pass, it is a lower bound if computation dominates. One segment, whose backward pass
    is all of it, is the whole gradient in one ring all-reduce. Source: Pipe-SGD, equations 5 and 6.
    """
    exchange_s = segmented_ring_s(world, nbytes, link, segments=segments, synchronisation_s=synchronisation_s)
    return pipelined_s(
        iterations, update_s=update_s, compute_s=forward_s + first_backward_s, communicate_s=exchange_s
    )


def scaling_efficiency(*, update_s: float, compute_s: float, communicate_s: float) -> float:
    """Return the speedup over one rank divided by the ranks: 1 if a pipeline is compute bound.

    ``SE = (l_up + l_comp) / max(l_up + l_comp, l_comm)``. Source: Pipe-SGD, section 3.2.
    """
    alone_s = update_s + compute_s
    slowest_s = pipelined_s(1, update_s=update_s, compute_s=compute_s, communicate_s=communicate_s)
    return alone_s / slowest_s if slowest_s > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A gradient bucket: backward finishes it at ``ready_s``, and its exchange takes ``exchange_s``."""

    ready_s: float
    exchange_s: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """The time at which the last exchange ends, and the seconds that backward doesn't hide."""

    end_s: float
    exposed_s: float


def overlap(buckets: Iterable[Bucket], backward_s: float) -> Overlap:
    """Return how long the exchanges continue after a backward pass of ``backward_s`` seconds.

    The exchanges run one after the other in the order of ``buckets``, each as soon as its bucket is ready and
    the previous one is done, and don't slow down backward. Time counts from the start of backward.
    """
    end_s = 0.0
    for bucket in buckets:
        end_s = max(end_s, bucket.ready_s) + bucket.exchange_s
    return Overlap(end_s, max(0.0, end_s - backward_s))


@dataclass(frozen=True, slots=True)
class WorkerAggregatorStep:
    """The parts of a step with an aggregator, in seconds, one after the other.

    The workers spend ``forward_s``, ``backward_s``, and ``gpu_copy_s``; gradients and weights travel for
    ``communicate_s``; and the aggregator spends ``gradient_sum_s`` and ``update_s``. Source: INCEPTIONN,
    MICRO 2018, table II.
    """

    forward_s: float
    backward_s: float
    gpu_copy_s: float
    gradient_sum_s: float
    communicate_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        """The seconds of the step."""
        local_s = self.forward_s + self.backward_s + self.gpu_copy_s
        return local_s + self.gradient_sum_s + self.communicate_s + self.update_s

    @property
    def communication_share(self) -> float:
        """The part of the step, from 0 to 1, in which gradients and weights travel."""
        return self.communicate_s / self.total_s
