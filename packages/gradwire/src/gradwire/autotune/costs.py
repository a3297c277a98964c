"""Measurements for a choice: codecs and frames on each kind of host, once per run, and links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields, replace
from functools import partial

import torch

from gradwire.autotune.pacing import Together, Work, at_once
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.errors import ExchangeError, LinkError
from gradwire.exchange import Exchange
from gradwire.machine import cores
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.calibration import excerpt, measure_host, synthetic_gradients
from gradwire.timing.calibrate import codec_cost, cost_on_other_gradients, rest_between_segments
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.timing.packet_trains import Direction, answer
from gradwire.timing.pairs import HostMap, directions, from_all

_TIMES = ("encode_s", "decode_s", "decode_add_s")
_FRAMES = ("send_s", "receive_s", "send_s_per_nbyte", "receive_s_per_nbyte", "beside_s_per_nbyte")


class Costs:
    """The costs of codecs and frames on this host, whose machine ``ranks_per_machine`` ranks share.

    Codecs have the threads of the calling thread, as in an exchange.
    """

    def __init__(self, ranks_per_machine: int, config: AutoConfig = DEFAULT) -> None:
        self._sharing, self._config = ranks_per_machine, config
        self._host: HostCost | None = None
        self._codecs: dict[str, CodecCost] = {}
        self._counts: dict[str, int] = {}  # the numbers of values on which codecs were timed
        self._outdated: set[str] = set()

    def prepare(self, line: Line | None, codecs: Iterable[Codec], count: int) -> None:
        """Time codecs on synthetic gradients of a model with ``count`` values, and frames.

        Later calls of ``environment`` only measure payload sizes. Raises ``GradwireError`` if a measurement
        fails.
        """
        values = synthetic_gradients(min(count, self._config.timed_count))[0]
        at_once(self.timing(line, codecs, values))
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
        every = [*codecs]
        yield from self.timing(line, every, values)
        for codec in every:
            name = str(codec)
            if name in self._outdated:
                self._codecs[name] = cost_on_other_gradients(self._codecs[name], codec, {1: values})
                self._outdated.discard(name)
                yield None
        found = {name: self._codecs[name] for name in map(str, every)}
        return Environment(line, found, self._frames(), threads=torch.get_num_threads())

    def timing(self, line: Line | None, codecs: Iterable[Codec], values: torch.Tensor) -> Work[None]:
        """Time the codecs that weren't timed on about as many values, and frames, in a piece each.

        Before each call, a codec rests as between two segments on ``line``, or for the longest time without
        one.
        """
        nbytes, rest_s = FLOAT_NBYTES * self._config.timed_count, self._config.longest_rest_s
        if line is not None:
            rest_s = min(rest_between_segments(line, nbytes), rest_s)
        for codec in codecs:
            name = str(codec)
            if not self._was_timed(name, values.numel()):
                repeats = self._config.cost_repeats
                self._codecs[name] = codec_cost(codec, [values], 1, nbytes, rest_s, repeats)
                self._counts[name] = values.numel()
                self._outdated.discard(name)
                yield None
        if self._host is None:
            self._frames()
            yield None

    def _was_timed(self, name: str, count: int) -> bool:
        """Return whether a codec was timed on ``count`` values, or on at most twice or half as many."""
        timed = self._counts.get(name, 0)
        return count <= 2 * timed and timed <= 2 * count

    def _frames(self) -> HostCost:
        """Return the cost of frames, measured in the first call."""
        if self._host is None:
            try:
                self._host = measure_host(cores(), self._sharing, self._config.cost_repeats)
            except LinkError:  # no local network
                self._host = HostCost(cores=cores(), ranks_per_machine=self._sharing)
        return self._host

    # The times on all kinds of hosts, as rows of numbers.

    def row(self, codecs: Sequence[Codec]) -> list[float]:
        """Return the seconds of codecs and frames on this host; all 0 if they weren't timed."""
        names = [*map(str, codecs)]
        if self._host is None or not all(name in self._codecs for name in names):
            return [0.0] * (len(names) * (1 + 2 * len(_TIMES)) + len(_FRAMES) + 2)
        found = [value for name in names for value in _seconds_of(self._codecs[name])]
        found += [getattr(self._host, name) for name in _FRAMES]
        return [*found, self._host.cores, self._host.ranks_per_machine]

    def take_slowest(self, codecs: Sequence[Codec], rows: Sequence[Sequence[float]]) -> None:
        """Use the longest times in the rows of all ranks, because a step is as slow as its slowest rank."""
        timed = [row for row in rows if any(row)]
        if not timed or self._host is None:
            return
        most = [max(values) for values in zip(*timed, strict=True)]
        length = 1 + 2 * len(_TIMES)
        for codec in codecs:
            known = self._codecs.get(str(codec))
            if known is not None:
                self._codecs[str(codec)] = _with_seconds(known, most[:length])
            most = most[length:]
        crowded = min(timed, key=lambda row: row[-2] / row[-1])
        self._host = replace(
            self._host,
            **dict(zip(_FRAMES, most, strict=False)),
            cores=int(crowded[-2]),
            ranks_per_machine=int(crowded[-1]),
        )


def _seconds_of(cost: CodecCost) -> list[float]:
    points = [cost.at(1), cost.finished]
    times = [0.0 if each is None else getattr(each, name) for each in points for name in _TIMES]
    return [cost.call_s, *times]


def _with_seconds(cost: CodecCost, seconds: Sequence[float]) -> CodecCost:
    def timed(point: CodecPoint, times_s: Sequence[float]) -> CodecPoint:
        encode_s, decode_s, decode_add_s = times_s
        return replace(point, encode_s=encode_s, decode_s=decode_s, decode_add_s=decode_add_s)

    partial, finished = seconds[1 : 1 + len(_TIMES)], seconds[1 + len(_TIMES) :]
    points = tuple(timed(each, partial) for each in cost.points)
    return replace(
        cost,
        points=points,
        call_s=seconds[0],
        finished=cost.finished and timed(cost.finished, finished),
    )


def typical(values: torch.Tensor, config: AutoConfig = DEFAULT) -> torch.Tensor:
    """Return the excerpt of a gradient on which codecs are measured."""
    return excerpt(values, config.timed_count)


# The measurement of a run's links, in pieces.

LineRow = tuple[float, ...]
LINE_FIELDS = len(fields(Line))
_LINKS = "a measurement of the network"
"""The name of a piece in errors."""


def measuring_line(
    hosts: HostMap,
    rank: int,
    budget_s: float,
    config: AutoConfig = DEFAULT,
    late_s: float | None = None,
) -> Work[LineRow]:
    """Return the ``Line`` from this rank to the next one in a ring, as a row; all 0 if it isn't measured.

    All ranks call it. It has only pieces in which all ranks take part, each of about ``budget_s``, or of a
    round trip if that is longer. ``late_s`` limits the wait for other ranks to begin a piece; by default, the
    link's timeout does.
    """
    alone, both = directions(hosts.hosts)
    own, answered_nbytes = Direction((rank + 1) % len(hosts.hosts), late_s=late_s), 0

    def piece(exchange: Exchange, group: Sequence[tuple[int, int]], *, begins: bool, is_duplex: bool) -> None:
        nonlocal answered_nbytes
        link = exchange.link
        sources = [first for first, second in group if second == rank]
        sends = any(first == rank for first, _ in group)
        try:
            if begins and hosts.is_shared:
                from_all(link, bytes(1), late_s)  # no host takes part in two measurements
            if sends and is_duplex:
                own.nbytes = own.nbytes if own.alone else answered_nbytes or own.nbytes
                own.send_and_answer(link, sources[0] if sources else None)
            elif sends:
                own.send(link, budget_s)
            elif sources:
                answered_nbytes = answer(link, sources[0], late_s)
        except LinkError as error:
            raise ExchangeError(f"{_LINKS} failed: {error}") from error

    for groups, pieces, is_duplex in ((alone, config.line_pieces, False), (both, config.duplex_pieces, True)):
        for group in groups:
            for number in range(pieces):
                call = partial(piece, group=group, begins=number == 0, is_duplex=is_duplex)
                yield Together(_LINKS, call)
    line = own.line
    return (0.0,) * LINE_FIELDS if line is None else astuple(line)


def line_of(rows: Sequence[Sequence[float]]) -> Line:
    """Return the worst value of each field over the ranks' results of ``measuring_line``."""
    lines = [Line(*row) for row in rows if any(row)]
    return Line(
        max(each.latency_s for each in lines),
        min(each.nbytes_per_s for each in lines),
        min(each.burst_nbytes for each in lines),
        min(each.duplex_share for each in lines),
    )
