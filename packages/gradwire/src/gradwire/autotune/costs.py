"""Measurements for a choice: codecs and frames on rank 0, once per run, and links on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields

import torch

from gradwire.autotune.pacing import Work, at_once
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.errors import ExchangeError, LinkError
from gradwire.links.base import Link
from gradwire.machine import cores, is_inside
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.calibration import (
    excerpt,
    measure_host,
    synthetic_gradients,
    threads_of,
    use_threads,
)
from gradwire.timing.calibrate import codec_cost, cost_on_other_gradients, rest_between_segments
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost, Line, fit
from gradwire.timing.line_rate import IN_TRAINING_TRIPS, Effort, measure
from gradwire.timing.pairs import peers_in_turn


class Costs:
    """The costs of codecs and frames on this host, for ``world`` ranks."""

    def __init__(self, world: int, config: AutoConfig = DEFAULT) -> None:
        self._world, self._config = world, config
        self._host: HostCost | None = None
        self._codecs: dict[str, CodecCost] = {}
        self._counts: dict[str, int] = {}  # the numbers of values on which codecs were timed
        self._outdated: set[str] = set()

    def prepare(self, line: Line, codecs: Iterable[Codec], count: int) -> None:
        """Time codecs on synthetic gradients of a model with ``count`` values, and frames.

        Later calls of ``environment`` only measure payload sizes. Raises ``GradwireError`` if a measurement
        fails.
        """
        values = synthetic_gradients(min(count, self._config.timed_count))[0]
        at_once(self.measuring(line, codecs, values))
        self.forget_sizes()

    def forget_sizes(self) -> None:
        """Mark payload sizes as outdated, because gradients may have changed; codec times stay valid."""
        self._outdated |= self._codecs.keys()

    def environment(self, line: Line, codecs: Iterable[Codec], values: torch.Tensor) -> Environment:
        """Return the environment of plans with these codecs: link, host, and the codecs' costs on ``values``.

        Codecs that were already timed on about as many values aren't timed again; only their outdated
        payload sizes are measured. Raises ``GradwireError`` if a measurement fails.
        """
        return at_once(self.measuring(line, codecs, values))

    def measuring(self, line: Line, codecs: Iterable[Codec], values: torch.Tensor) -> Work[Environment]:
        """Measure what ``environment`` returns, in a piece of work for each codec, and one for frames."""
        nbytes = FLOAT_NBYTES * self._config.timed_count
        rest_s, found = (
            min(rest_between_segments(line, nbytes), self._config.longest_rest_s),
            dict[str, CodecCost](),
        )
        for codec in codecs:
            name = str(codec)
            with use_threads(threads_of(self._world, shared=is_inside())):
                if not self._was_timed(name, values.numel()):
                    repeats = self._config.cost_repeats
                    found[name] = codec_cost(codec, [values], 1, nbytes, rest_s, repeats)
                    self._counts[name] = values.numel()
                elif name in self._outdated:
                    found[name] = cost_on_other_gradients(self._codecs[name], codec, {1: values})
                else:
                    found[name] = self._codecs[name]
            self._codecs[name] = found[name]
            self._outdated.discard(name)
            yield None
        return Environment(line, found, self._frames())

    def _was_timed(self, name: str, count: int) -> bool:
        """Return whether a codec was timed on ``count`` values, or on at most twice or half as many."""
        timed = self._counts.get(name, 0)
        return count <= 2 * timed and timed <= 2 * count

    def _frames(self) -> HostCost:
        """Return the cost of frames, measured in the first call."""
        if self._host is None:
            sharing = self._world if is_inside() else 1
            try:
                self._host = measure_host(cores(), sharing, self._config.cost_repeats)
            except LinkError:  # no local network
                self._host = HostCost(cores=cores(), ranks_per_machine=sharing)
        return self._host


def typical(values: torch.Tensor, config: AutoConfig = DEFAULT) -> torch.Tensor:
    """Return the excerpt of a gradient on which codecs are measured."""
    return excerpt(values, config.timed_count)


# The measurement of a run's links, in about half a second.

LINE_FIELDS = len(fields(Line))


def own_line(link: Link, config: AutoConfig = DEFAULT) -> tuple[float, ...]:
    """Return the worst value of each ``Line`` field over the links that this rank measured as leader.

    All fields are 0 if this rank led no measurement. All ranks call it: the links between neighbours in a
    ring are measured, at the same time if they have no host in common. Raises ``ExchangeError``.
    """
    lines, effort = list[Line](), Effort(*config.line_effort, trips=IN_TRAINING_TRIPS)
    try:
        for peer in peers_in_turn(link):
            points = measure(link, peer, effort)
            lines += [fit(points)] if points else []
    except LinkError as error:
        raise ExchangeError(f"a measurement of the network failed: {error}") from error
    return astuple(_slowest(lines)) if lines else (0.0,) * LINE_FIELDS


def line_of(rows: Sequence[Sequence[float]]) -> Line:
    """Return the worst value of each field over the ranks' results of ``own_line``."""
    return _slowest([Line(*row) for row in rows if any(row)])


def _slowest(lines: Sequence[Line]) -> Line:
    return Line(
        max(each.latency_s for each in lines),
        min(each.nbytes_per_s for each in lines),
        min(each.burst_nbytes for each in lines),
        min(each.duplex_share for each in lines),
    )
