"""Measure all-reduces: time, bytes and correctness of one configuration on all ranks.

Every function here runs on all ranks in the same order. ``time_calls`` gives this rank's seconds; what
``gather`` collects makes them everybody's. The figures are those of nccl-tests: the algorithm bandwidth is
bytes per second of the bucket, the bus bandwidth is that times ``2 (p - 1) / p``, which is what every rank's
link must carry at least.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gradwire.codecs import parse
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.units import exact_size

TORCH = "torch"
"""In place of an algorithm: PyTorch's own all-reduce."""

Gather = Callable[[torch.Tensor], torch.Tensor]
"""Takes a rank's numbers (1-D) and returns all ranks', one row a rank."""


@dataclass(frozen=True)
class Configuration:
    """What is measured: ``algorithm`` is a name of ``collectives.TABLE`` or ``TORCH``, ``codec`` a spec."""

    algorithm: str
    codec: str
    nbytes: int
    segment_nbytes: int = Plan.segment_nbytes

    @property
    def count(self) -> int:
        """The bucket's elements."""
        return self.nbytes // FLOAT_NBYTES

    @property
    def plan(self) -> Plan:
        """How the bucket is exchanged. Raises ``SpecError`` for ``TORCH`` or what no exchange can use."""
        return Plan(parse(self.codec), self.algorithm, self.segment_nbytes)

    def __str__(self) -> str:
        codec = "" if self.algorithm == TORCH else f" {self.codec}"
        return f"{self.algorithm}{codec} {exact_size(self.nbytes)}"


@dataclass(frozen=True)
class Timing:
    """The iterations' seconds, each that of its slowest rank."""

    seconds: tuple[float, ...]

    @property
    def p50_s(self) -> float:
        """The median."""
        return float(np.percentile(self.seconds, 50))

    @property
    def p99_s(self) -> float:
        """The 99th percentile."""
        return float(np.percentile(self.seconds, 99))


def time_calls(
    all_reduce: Callable[[torch.Tensor], object],
    tensor: torch.Tensor,
    iterations: int,
    warmup: int,
    barrier: Callable[[], None],
    pause_s: float = 0.0,
) -> list[float]:
    """Return this rank's seconds of ``iterations`` all-reduces in place of ``tensor``, which is not changed.

    Every iteration begins when all ranks have come to ``barrier``; ``warmup`` iterations before are not
    counted. ``pause_s`` is rested after each barrier, in which a rate limiter regains its burst.
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
    """Return every iteration's time on its slowest rank, the same on all ranks."""
    rows = gather(torch.tensor(seconds, dtype=torch.float64))
    return Timing(tuple(rows.max(dim=0).values.tolist()))
