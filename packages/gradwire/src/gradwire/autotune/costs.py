"""Measurements for a choice: codecs and frames on rank 0, once in a run, and the lines of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields

import torch

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.errors import ExchangeError, LinkError
from gradwire.links.base import Link
from gradwire.machine import cores, is_inside
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.calibration import (
    SEGMENT_NBYTES,
    excerpt,
    measure_host,
    threads_of,
    use_threads,
)
from gradwire.timing.calibrate import codec_cost, cost_on_other_gradients, rest_between_segments
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost, Line, fit
from gradwire.timing.line_rate import Effort, measure


class Costs:
    """The seconds of codecs and frames on this host, for ``world`` ranks."""

    def __init__(self, world: int, config: AutoConfig = DEFAULT) -> None:
        self._world, self._repeats = world, config.cost_repeats
        self._host: HostCost | None = None
        self._codecs: dict[str, CodecCost] = {}
        self._counts: dict[str, int] = {}  # of the values for which a codec was timed
        self._outdated: set[str] = set()

    def forget_sizes(self) -> None:
        """Measure the sizes of payloads anew, because gradients may be others; codecs stay as fast."""
        self._outdated |= self._codecs.keys()

    def environment(self, line: Line, codecs: Iterable[Codec], values: torch.Tensor) -> Environment:
        """Return where plans with these codecs run, with what they take of ``values``.

        Codecs are timed that were not yet, for as many values; of others, sizes that are outdated are
        measured again. Raises ``GradwireError`` where that fails.
        """
        rest_s, found = rest_between_segments(line, SEGMENT_NBYTES), dict[str, CodecCost]()
        with use_threads(threads_of(self._world, shared=is_inside())):
            for codec in codecs:
                name = str(codec)
                if self._counts.get(name) != values.numel():
                    found[name] = codec_cost(codec, [values], 1, SEGMENT_NBYTES, rest_s, self._repeats)
                elif name in self._outdated:
                    found[name] = cost_on_other_gradients(self._codecs[name], codec, {1: values})
                else:
                    found[name] = self._codecs[name]
        self._codecs |= found
        self._counts |= dict.fromkeys(found, values.numel())
        self._outdated -= found.keys()
        return Environment(line, found, self._frames())

    def _frames(self) -> HostCost:
        """Return the cost of frames."""
        if self._host is None:
            sharing = self._world if is_inside() else 1
            try:
                self._host = measure_host(cores(), sharing, self._repeats)
            except LinkError:  # no local network
                self._host = HostCost(cores=cores(), ranks_per_machine=sharing)
        return self._host


def typical(values: torch.Tensor) -> torch.Tensor:
    """Return the part of a gradient with which codecs are measured."""
    return excerpt(values, SEGMENT_NBYTES // FLOAT_NBYTES)


# Measure the lines of a run between two of its steps, in about half a second: the slowest one counts.

LINE_FIELDS = len(fields(Line))


def own_line(link: Link, config: AutoConfig = DEFAULT) -> tuple[float, ...]:
    """Return the fields of the slowest line that this rank has led, 0 for a rank that has led none.

    All ranks call it. Each neighbours' line of a ring is measured, as many at once as have no rank in common.
    Raises ``ExchangeError``.
    """
    lines, effort = list[Line](), Effort(*config.line_effort)
    for pairs in matchings(link.world):
        for low, high in pairs:
            if link.rank in (low, high):
                try:
                    points = measure(link, low + high - link.rank, effort)
                except LinkError as error:
                    raise ExchangeError(f"a measurement of the network failed: {error}") from error
                lines += [fit(points)] if points else []
    return astuple(_slowest(lines)) if lines else (0.0,) * LINE_FIELDS


def line_of(rows: Sequence[Sequence[float]]) -> Line:
    """Return the slowest of what the ranks' calls of ``own_line`` have returned."""
    return _slowest([Line(*row) for row in rows if any(row)])


def matchings(world: int) -> list[list[tuple[int, int]]]:
    """Return the neighbours of a ring in groups of pairs that have no rank in common."""
    chain = [(rank, rank + 1) for rank in range(world - 1)]
    groups = [chain[0::2], chain[1::2]]
    if world > 2 and world % 2 == 0:
        groups[1].append((0, world - 1))
    elif world > 2:
        groups.append([(0, world - 1)])
    return [group for group in groups if group]


def _slowest(lines: Sequence[Line]) -> Line:
    return Line(
        max(each.latency_s for each in lines),
        min(each.nbytes_per_s for each in lines),
        min(each.burst_nbytes for each in lines),
        min(each.duplex_share for each in lines),
    )
