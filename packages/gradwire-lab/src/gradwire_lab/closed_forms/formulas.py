"""The papers' closed forms for one all-reduce under the alpha-beta-gamma model, in seconds.

``world`` is the number of ranks p, and ``nbytes`` is the bucket's bytes n per rank. A codec with ratio r
divides beta by r; gamma stays per byte of float32, because ranks add floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.fields import Source, real

_HOP = Source("a hop's cost", "give seconds")


@dataclass(frozen=True, slots=True)
class AlphaBetaGamma:
    """The cost of one hop on a uniform network.

    Raises ``SpecError`` if a value is negative, infinite, or NaN.

    Parameters
    ----------
    alpha_s
        The latency in seconds per message.
    beta_s_per_nbyte
        The seconds per byte on the link, the inverse of the rate.
    gamma_s_per_nbyte
        The seconds to add one byte of float32 to the rank's own chunk.
    """

    alpha_s: float
    beta_s_per_nbyte: float
    gamma_s_per_nbyte: float = 0.0

    def __post_init__(self) -> None:
        names = ("alpha_s", "beta_s_per_nbyte", "gamma_s_per_nbyte")
        _HOP.check(self, **dict.fromkeys(names, real(0.0)))


def parameter_server_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``2 p (n beta + alpha)``, for p workers and an extra server that serves one worker at a time.

    Source: Iandola and others, a measurement study, equation 1.
    """
    return 2 * world * (nbytes * link.beta_s_per_nbyte + link.alpha_s)


def star_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``2 (p - 1) (alpha + n beta) + (p - 1) n gamma``, where one of the p ranks is the server.

    Source: the schedule of ``gradwire.collectives.star``; equation 1 of the study for p - 1 workers, and the
    additions.
    """
    others = world - 1
    moved_s = 2 * others * (link.alpha_s + nbytes * link.beta_s_per_nbyte)
    return moved_s + others * nbytes * link.gamma_s_per_nbyte


def worker_aggregator_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``(1 + lg p) alpha + (p + lg p) n beta + (p - 1) n gamma``.

    All workers send their gradients to one aggregator, and the weights return through a tree.

    Source: INCEPTIONN, MICRO 2018, the model of the worker-aggregator organization.
    """
    levels = math.log2(world)
    latency_s = (1 + levels) * link.alpha_s
    transfer_s = (world + levels) * nbytes * link.beta_s_per_nbyte
    return latency_s + transfer_s + (world - 1) * nbytes * link.gamma_s_per_nbyte


def tree_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``lg p (2 alpha + 2 n beta + n gamma)``, for reduce and broadcast over a binomial tree.

    Source: the study, equation 2, without gamma; each level of the reduction adds the whole bucket once. The
    formula is exact for powers of two.
    """
    hop_s = link.alpha_s + nbytes * link.beta_s_per_nbyte
    return math.log2(world) * (2 * hop_s + nbytes * link.gamma_s_per_nbyte)


def ring_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``2 (p - 1) alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma``.

    Source: Patarasuk and Yuan, JPDC 69 (2009); the study, equation 3, without gamma; INCEPTIONN and Pipe-SGD,
    equation 5, with gamma.
    """
    return 2 * (world - 1) * link.alpha_s + _scattered_s(world, nbytes, link)


def butterfly_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``2 lg p alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma``.

    The butterfly is recursive halving, then doubling. The formula is exact for powers of two.

    Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005); the study, equation 4, without gamma.
    """
    return 2 * math.log2(world) * link.alpha_s + _scattered_s(world, nbytes, link)


def segmented_ring_s(
    world: int, nbytes: float, link: AlphaBetaGamma, *, segments: int, synchronisation_s: float = 0.0
) -> float:
    """Return ``2 (p - 1) L alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma + L S``.

    The segmented ring is L ring all-reduces, each of 1/L of the bucket. ``segments`` is L, and
    ``synchronisation_s`` is S, the seconds to synchronise all ranks before each all-reduce. One segment is
    the sequential exchange.

    Source: Pipe-SGD, NeurIPS 2018, equations 5 and 6.
    """
    return segments * (ring_s(world, nbytes / segments, link) + synchronisation_s)


def least_transfer_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    """Return ``2 (p - 1)/p n beta``, the minimum transfer time of any all-reduce.

    Source: Patarasuk and Yuan, JPDC 69 (2009), theorem 1.
    """
    return 2 * (world - 1) / world * nbytes * link.beta_s_per_nbyte


def _scattered_s(world: int, nbytes: float, link: AlphaBetaGamma) -> float:
    added_s = (world - 1) / world * nbytes * link.gamma_s_per_nbyte
    return least_transfer_s(world, nbytes, link) + added_s


# The time of training steps: Pipe-SGD's models, and INCEPTIONN's steps with an aggregator.
#
# In Pipe-SGD's notation (NeurIPS 2018), ``iterations`` is T, ``update_s`` is l_up, ``compute_s`` is l_comp
# (forward and backward together), and ``communicate_s`` is l_comm.


def sync_s(iterations: int, *, update_s: float, compute_s: float, communicate_s: float) -> float:
    """Return ``T (l_up + l_comp + l_comm)``, the time without any overlap. Source: Pipe-SGD, equation 2."""
    return iterations * (update_s + compute_s + communicate_s)


def pipelined_unlimited_s(
    iterations: int, pipeline: int, *, update_s: float, compute_s: float, communicate_s: float
) -> float:
    """Return ``T/K (l_up + l_comp + l_comm)``, for K concurrent steps, each with its own resources.

    Source: Pipe-SGD, equation 3; a lower bound that no rank with one device and one port reaches for K > 2.
    """
    return sync_s(iterations, update_s=update_s, compute_s=compute_s, communicate_s=communicate_s) / pipeline


def pipelined_s(iterations: int, *, update_s: float, compute_s: float, communicate_s: float) -> float:
    """Return ``T max(l_up + l_comp, l_comm)``, because either the device or the port is always busy.

    The equation holds for every K from 2 up, after the pipeline has filled. Source: Pipe-SGD, equation 4.
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
    """Return the seconds of a pipeline that exchanges each segment as soon as backward has computed it.

    ``T max(l_up + l_for + l_b, 2 (p - 1) L alpha + 2 (p - 1)/p n beta + (p - 1)/p n gamma + L S)``, where
    ``first_backward_s``, l_b, is the backward pass of only the first segment. Because the equation omits the
    rest of the backward pass, it is a lower bound if computation dominates. With one segment, l_b is the
    whole backward pass, and the gradient is one ring all-reduce. Source: Pipe-SGD, equations 5 and 6.
    """
    exchange_s = segmented_ring_s(world, nbytes, link, segments=segments, synchronisation_s=synchronisation_s)
    return pipelined_s(
        iterations, update_s=update_s, compute_s=forward_s + first_backward_s, communicate_s=exchange_s
    )


def scaling_efficiency(*, update_s: float, compute_s: float, communicate_s: float) -> float:
    """Return the speed-up over one rank divided by the number of ranks: 1 if the pipeline is compute-bound.

    ``SE = (l_up + l_comp) / max(l_up + l_comp, l_comm)``. Source: Pipe-SGD, section 3.2.
    """
    alone_s = update_s + compute_s
    slowest_s = pipelined_s(1, update_s=update_s, compute_s=compute_s, communicate_s=communicate_s)
    return alone_s / slowest_s if slowest_s > 0 else 1.0


@dataclass(frozen=True, slots=True)
class WorkerAggregatorStep:
    """The sequential parts of a step with an aggregator, in seconds.

    The workers spend ``forward_s``, ``backward_s``, and ``gpu_copy_s``; gradients and weights take
    ``communicate_s`` on the network; and the aggregator spends ``gradient_sum_s`` and ``update_s``. Source:
    INCEPTIONN, MICRO 2018, table II.
    """

    forward_s: float
    backward_s: float
    gpu_copy_s: float
    gradient_sum_s: float
    communicate_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        """The step time in seconds."""
        local_s = self.forward_s + self.backward_s + self.gpu_copy_s
        return local_s + self.gradient_sum_s + self.communicate_s + self.update_s

    @property
    def communication_share(self) -> float:
        """The share of the step, from 0 to 1, in which gradients and weights are sent."""
        return self.communicate_s / self.total_s
