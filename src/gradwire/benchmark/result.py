"""The result of one configuration: what was measured, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradwire import collectives
from gradwire.benchmark.allreduce import TORCH, Configuration, Timing
from gradwire.benchmark.correctness import Checked
from gradwire.fields import Source, optional, real, rows, text, whole
from gradwire.plan import Plan
from gradwire.timing.replay.line import Line
from gradwire.timing.schedule_model.network import Network
from gradwire.timing.schedule_model.simulate import simulate

SCHEMA = "gradwire.bench-allreduce/2"
_SOURCE = Source("a row of a record of all-reduces", "measure again with 'gradwire bench allreduce'")
_MOST_RANKS = 1 << 16
"""Keeps the memory of a damaged record's rows small."""
TORCHS_ALGORITHM = "ring"
"""Which Gloo runs beneath torch's all-reduce."""


@dataclass(frozen=True)
class Result:
    """A configuration on ``world`` ranks; ``line`` is what the network could do, None where nobody measured.

    Bandwidths are those of nccl-tests, from the median time.
    """

    configuration: Configuration
    world: int
    timing: Timing
    checked: Checked
    line: Line | None = None

    @property
    def algbw_nbytes_per_s(self) -> float:
        """The bucket's bytes per second."""
        return self.configuration.nbytes / self.timing.p50_s

    @property
    def busbw_nbytes_per_s(self) -> float:
        """Bytes of floats that every rank's link carries per second at the least."""
        return self.algbw_nbytes_per_s * 2 * (self.world - 1) / self.world

    @property
    def best_s(self) -> float | None:
        """The least time by theory: the schedule over the line, the codec's ratio taken off, no additions.

        Source: Iandola and others, a measurement study, equations 1 to 4, counted step by step so that they
        hold for every algorithm and world.
        """
        if self.line is None:
            return None
        name = self.configuration.algorithm
        rate = self.line.nbytes_per_s
        network = Network(self.world, rate, rate, self.line.latency_s)
        algorithm = collectives.get(TORCHS_ALGORITHM if name == TORCH else name)
        return simulate(algorithm, network, self.configuration.nbytes, ratio=self.checked.ratio).total_s

    @property
    def share_of_best(self) -> float | None:
        """The least time as a share of the median time."""
        best_s = self.best_s
        return None if best_s is None else best_s / self.timing.p50_s

    def describe(self, torch_s: float | None) -> dict[str, object]:
        """Return the JSON of the result; ``torch_s`` is torch's median at the same size and world."""
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
    """Return the result that ``describe`` has described; the time of its check isn't in records."""
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
    """Return torch's median seconds by world and bytes."""
    return {
        (result.world, result.configuration.nbytes): result.timing.p50_s
        for result in results
        if result.configuration.algorithm == TORCH
    }
