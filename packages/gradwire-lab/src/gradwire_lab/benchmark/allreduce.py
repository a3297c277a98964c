"""Measure all-reduces: the time, bytes, and correctness of one configuration on all ranks.

Every function here runs on all ranks in the same order. ``time_calls`` returns this rank's seconds, which
``gather`` shares with all ranks. Bandwidths are defined as in nccl-tests: the algorithm bandwidth is the
bucket's bytes per second; the bus bandwidth is ``2 (p - 1) / p`` times the algorithm bandwidth, the lowest
rate that every rank's link must sustain.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradwire import collectives
from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError
from gradwire.exchange.norms import error_bound, rounding_bound
from gradwire.fields import Source, optional, real, rows, text, whole
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.line import Line
from gradwire.units import exact_size
from gradwire_lab.benchmark.data import Data
from gradwire_lab.closed_forms.network import Network

TORCH = "torch"
"""The algorithm name of PyTorch's own all-reduce."""

Gather = Callable[[torch.Tensor], torch.Tensor]
"""A function that returns the numbers of all ranks (1-D), as one row per rank."""


@dataclass(frozen=True)
class Configuration:
    """An all-reduce to measure. ``algorithm`` is a key of ``collectives.TABLE``, or ``TORCH``."""

    algorithm: str
    codec: str
    nbytes: int
    segment_nbytes: int = Plan.segment_nbytes

    @property
    def count(self) -> int:
        """The number of elements of the bucket."""
        return self.nbytes // FLOAT_NBYTES

    @property
    def plan(self) -> Plan:
        """The plan of the exchange. Raises ``SpecError`` for ``TORCH`` and for an invalid combination."""
        return Plan(parse(self.codec), self.algorithm, self.segment_nbytes)

    def __str__(self) -> str:
        codec = "" if self.algorithm == TORCH else f" {self.codec}"
        return f"{self.algorithm}{codec} {exact_size(self.nbytes)}"


@dataclass(frozen=True)
class Timing:
    """The seconds of each iteration on the iteration's slowest rank."""

    seconds: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        """The median in seconds."""
        return float(np.percentile(self.seconds, 50))

    @property
    def p99_s(self) -> float:
        """The 99th percentile in seconds."""
        return float(np.percentile(self.seconds, 99))


def time_calls(
    all_reduce: Callable[[torch.Tensor], object],
    tensor: torch.Tensor,
    iterations: int,
    warmup: int,
    barrier: Callable[[], None],
    pause_s: float = 0.0,
) -> list[float]:
    """Return this rank's seconds for each of ``iterations`` all-reduces of copies of ``tensor``.

    Each begins after a barrier and ``pause_s``, in which a rate limiter regains its burst.
    """
    bucket = torch.empty_like(tensor)
    seconds = []
    for _ in range(warmup + iterations):
        bucket.copy_(tensor)
        barrier()
        time.sleep(pause_s)
        start = time.perf_counter()
        all_reduce(bucket)
        seconds.append(time.perf_counter() - start)
    return seconds[warmup:]


def slowest(seconds: list[float], gather: Gather) -> Timing:
    """Return each iteration's time on its slowest rank; all ranks return the same times."""
    rows = gather(torch.tensor(seconds, dtype=torch.float64))
    return Timing(tuple(rows.max(dim=0).values.tolist()))


# Correctness of an all-reduce: compared with the exact sum, and bit-identical on all ranks.


@dataclass(frozen=True)
class Checked:
    """The measurements of a correct all-reduce. An incorrect all-reduce raises an error.

    ``wire_nbytes`` has the bytes that each rank sent, with headers. ``ratio`` is float bytes per byte sent.
    Errors are differences from the exact sum. ``first_s`` is the slowest rank's time, with the setup.
    """

    wire_nbytes: tuple[int, ...]
    ratio: float
    largest_error: float
    allowed_error: float
    first_s: float


def check_all_reduce(
    all_reduce: Callable[[torch.Tensor], ExchangeCost],
    configuration: Configuration,
    data: Data,
    rank: int,
    world: int,
    gather: Gather,
) -> Checked:
    """Run one all-reduce, and compare its sum with the exact sum and between ranks. Raises ``JobError``."""
    bucket = data.bucket(rank, configuration.count)
    start = time.perf_counter()
    accounting = all_reduce(bucket)
    spent_s = time.perf_counter() - start
    exact = data.exact_sum(world, configuration.count)
    error = (bucket.double() - exact).abs_().max().item()
    figures = [accounting.raw_nbytes, accounting.wire_nbytes, error, spent_s]
    raw, wire, errors, spent = gather(torch.tensor(figures, dtype=torch.float64)).T
    checked = Checked(
        wire_nbytes=tuple(int(nbytes) for nbytes in wire.tolist()),
        ratio=(raw.sum() / wire.sum()).item() if wire.any() else 1.0,
        largest_error=errors.max().item(),
        allowed_error=allowed_error(configuration, data, world),
        first_s=spent.max().item(),
    )
    if not checked.largest_error <= checked.allowed_error:
        raise JobError(
            f"{configuration}: expected an error of at most {checked.allowed_error:.3g} on {world} ranks, "
            f"got {checked.largest_error:.3g}; please report this bug"
        )
    _check_identical(bucket, configuration, gather)
    return checked


def allowed_error(configuration: Configuration, data: Data, world: int) -> float:
    """Return the largest allowed difference from the exact sum."""
    envelope = data.envelope(world, configuration.count)
    if configuration.algorithm == TORCH:
        return rounding_bound(envelope, world)
    return error_bound(configuration.plan, envelope, world)


def _check_identical(bucket: torch.Tensor, configuration: Configuration, gather: Gather) -> None:
    digest = hashlib.sha256(bucket.numpy().tobytes()).digest()
    rows = gather(torch.tensor(list(digest), dtype=torch.uint8))
    different = [rank for rank, row in enumerate(rows) if not torch.equal(row, rows[0])]
    if different:
        raise JobError(
            f"{configuration}: expected bit-identical results on all ranks, but rank {different[0]} "
            "differs from rank 0; please report this bug"
        )


# The result of one configuration: its measurements and the derived figures.

SCHEMA = "gradwire.bench-allreduce/2"
_SOURCE = Source("a row of a record of all-reduces", "measure again with 'gradwire bench allreduce'")
_MOST_RANKS = 1 << 16
"""The largest accepted number of ranks, which bounds the memory for a damaged record."""
TORCHS_ALGORITHM = "ring"
"""The algorithm of torch's all-reduce, which is Gloo's."""


@dataclass(frozen=True)
class Result:
    """The result of a configuration on ``world`` ranks. ``line`` is None if the link wasn't measured."""

    configuration: Configuration
    world: int
    timing: Timing
    checked: Checked
    line: Line | None = None

    @property
    def algbw_nbytes_per_s(self) -> float:
        """The algorithm bandwidth: the bucket's bytes per second."""
        return self.configuration.nbytes / self.timing.p50_s

    @property
    def busbw_nbytes_per_s(self) -> float:
        """The bus bandwidth: the minimum bytes of floats per second that every rank's link must carry."""
        return self.algbw_nbytes_per_s * 2 * (self.world - 1) / self.world

    @property
    def best_s(self) -> float | None:
        """The theoretical minimum time: the schedule's compressed messages, without codec and additions.

        The steps are simulated, because the study's equations don't cover every algorithm and world.
        """
        if self.line is None:
            return None
        name = self.configuration.algorithm
        rate = self.line.nbytes_per_s
        network = Network(self.world, rate, rate, self.line.latency_s)
        algorithm = collectives.get(TORCHS_ALGORITHM if name == TORCH else name)
        return network.simulate(algorithm, self.configuration.nbytes, ratio=self.checked.ratio).total_s

    @property
    def share_of_best(self) -> float | None:
        """The theoretical minimum time as a share of the median time."""
        best_s = self.best_s
        return None if best_s is None else best_s / self.timing.p50_s

    def describe(self, torch_s: float | None) -> dict[str, object]:
        """Return the result as a JSON object. ``torch_s`` is the median of torch's equal all-reduce."""
        checked, timing, name = self.checked, self.timing, self.configuration
        return {
            "world": self.world,
            "algorithm": name.algorithm,
            "codec": name.codec,
            "nbytes": name.nbytes,
            "segment_nbytes": None if name.algorithm == TORCH else name.segment_nbytes,
            "p50_s": timing.p50_s,
            "p99_s": timing.p99_s,
            "seconds": list(timing.seconds),
            "algbw_nbytes_per_s": self.algbw_nbytes_per_s,
            "busbw_nbytes_per_s": self.busbw_nbytes_per_s,
            "best_s": self.best_s,
            "share_of_best": self.share_of_best,
            "speed_up_over_torch": None if torch_s is None else torch_s / timing.p50_s,
            "wire_nbytes": None if name.algorithm == TORCH else list(checked.wire_nbytes),
            "ratio": checked.ratio,
            "largest_error": checked.largest_error,
            "allowed_error": checked.allowed_error if checked.allowed_error < float("inf") else None,
            "identical_bits": True,
        }


def read_result(row: Mapping[str, Any], line: Line | None) -> Result:
    """Parse a result from ``describe``, with NaN for ``first_s``, which records omit."""
    given = _SOURCE.fields(row)
    world, number = given.get("world", whole(1, _MOST_RANKS)), real(0.0)
    configuration = Configuration(
        given.get("algorithm", text),
        given.get("codec", text),
        given.get("nbytes", whole()),
        given.get("segment_nbytes", optional(whole(1), Plan.segment_nbytes)),
    )
    checked = Checked(
        given.get("wire_nbytes", optional(rows(whole(), world), (0,) * world)),
        given.get("ratio", number),
        given.get("largest_error", number),
        given.get("allowed_error", optional(number, math.inf)),
        math.nan,
    )
    return Result(configuration, world, Timing(given.get("seconds", rows(number))), checked, line)


def torch_times(results: list[Result]) -> dict[tuple[int, int], float]:
    """Return torch's median seconds by world and size in bytes."""
    return {
        (result.world, result.configuration.nbytes): result.timing.p50_s
        for result in results
        if result.configuration.algorithm == TORCH
    }
