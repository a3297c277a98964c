"""Measure the lines of a run between two of its steps, in about half a second: the slowest one counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from gradwire.errors import ExchangeError, LinkError
from gradwire.links.base import Link
from gradwire.timing.measure.line_rate import Effort, measure
from gradwire.timing.replay.line import Line, fit

_EFFORT = Effort((1, 1 << 16, 1 << 17, 1 << 19), repeats=2, time_s=0.001)
"""Sizes from a slow line's to where a fast one has its rate; after one that takes 5 ms, none follows."""

LINE_FIELDS = 4


def own_line(link: Link) -> tuple[float, ...]:
    """Return the fields of the slowest line that this rank has led, 0 for a rank that has led none.

    All ranks call it. Each neighbours' line of a ring is measured, as many at once as have no rank in common.
    Raises ``ExchangeError``.
    """
    lines = []
    for pairs in matchings(link.world):
        for low, high in pairs:
            if link.rank in (low, high):
                try:
                    points = measure(link, low + high - link.rank, _EFFORT)
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
