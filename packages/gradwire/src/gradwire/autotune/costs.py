"""Divide work into pieces that run between steps, and measure codecs, frames, and links for a choice.

Measurements and the search for a plan are generators, so that no step becomes much longer. The generators
yield None after a piece of local work, and a ``Together`` where all ranks exchange rows. Between two steps, a
rank runs pieces until they have taken a share of the step's time. This share grows, which limits the number
of steps until the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from math import ceil, inf
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.errors import ExchangeError, LinkError
from gradwire.exchange import Exchange
from gradwire.machine import cores
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.calibration import excerpt, measure_host, synthetic_gradients
from gradwire.sync.messages import gather
from gradwire.timing.calibrate import codec_cost, cost_on_other_gradients, rest_between_segments
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.timing.packet_trains import Direction, answer
from gradwire.timing.pairs import HostMap, directions, from_all, map_hosts

if TYPE_CHECKING:
    from gradwire.links import Link
    from gradwire.sync.bucket.observe import BetweenSteps

T = TypeVar("T")
Rows = Sequence[Sequence[float]]
"""All ranks' numbers, a row for each rank."""


@dataclass(frozen=True)
class Together:
    """A piece of work, called ``what`` in errors, in which all ranks make the same call in the same step."""

    what: str
    call: Callable[[Exchange], Any]


Work = Generator[Together | None, Any, T]
"""Work in pieces. If one rank yields None between two ``Together``, every rank must do so at least once."""


def at_once(work: Work[T], exchange: Exchange | None = None) -> T:
    """Run all pieces now, and return the result; ``exchange`` is for work with a ``Together``."""
    value = None
    while True:
        try:
            piece = work.send(value)
        except StopIteration as done:
            result: T = done.value
            return result
        value = None
        if piece is not None:
            assert exchange is not None, "this work needs the other ranks"
            value = piece.call(exchange)


class PacedWork(Generic[T]):
    """Work in pieces that begins before step ``first``, and takes a share of each step.

    A rank runs its local pieces by its own clock, until they have taken half of ``paced_share`` of
    ``step_s``. If the work is ``urgent``, each step runs at least one piece. Otherwise, the pieces take their
    share on average: what a piece takes beyond its step's share is subtracted from later shares.

    The ranks compare their progress: once all have reached the next ``Together``, they run it in the same
    step, whatever their clocks say. They compare so often that comparisons take the other half of the share,
    and at least in every ``meeting_steps``-th step.

    The share doubles every ``paced_doubling_steps``, and the work is done at most ``most_paced_steps`` after
    ``first``. If the work isn't urgent, both numbers of steps are multiplied by ``unhurried_ratio``.
    ``result`` is valid once ``advance`` has returned True.
    """

    result: T

    def __init__(
        self,
        work: Work[T],
        first: int,
        step_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        config: AutoConfig,
        *,
        urgent: bool = True,
    ) -> None:
        self._work, self._first, self._timeout_s = work, first, timeout_s
        self._clock, self._config = clock, config
        self._urgent = urgent
        self._share_s = config.paced_share * step_s / 2  # of pieces, and of comparisons
        self._left_s = 0.0  # of the steps' shares so far; negative if pieces have taken more
        self._next: Together | None = None
        self._met, self._rest_steps, self._meeting_s = 0, 0, 0.0  # of the latest comparison
        self._all_wait = True  # whether all ranks wait for the next Together, with no local pieces left

    def hurry(self, step: int) -> None:
        """Make the work urgent from ``step`` on; all ranks call this before the same step."""
        if not self._urgent:
            self._urgent, self._first = True, step

    def advance(self, step: int, sync: BetweenSteps) -> bool:
        """Run this step's pieces; return whether the work is done, the same on all ranks."""
        late = (step - self._first) // (1 if self._urgent else self._config.unhurried_ratio)
        go_on = is_last = late >= self._config.most_paced_steps
        share_s = self._share_s * 2 ** (late // self._config.paced_doubling_steps)
        self._left_s = share_s + (0.0 if self._urgent else min(self._left_s, 0.0))
        until = inf if is_last else self._clock() + self._left_s
        must_run = self._urgent or step == self._first
        while True:
            self._run_local(until, must_run=must_run)
            if not self._all_wait:
                if not is_last and self._met < step < self._met + self._rest_steps:
                    return False
                waiting, go_on = self._agree(sync, until, step)
                if not waiting:
                    return False
            assert self._next is not None
            together, self._next, self._all_wait = self._next, None, True
            if self._resume(sync.exchange_now(together.what, together.call)):
                return True
            if self._waits and not go_on:
                return False

    @property
    def _waits(self) -> bool:
        return self._next is not None

    def _run_local(self, until: float, *, must_run: bool) -> None:
        """Run local pieces up to the next ``Together`` or ``until``; at least one if ``must_run``."""
        began = self._clock()
        while not self._waits and (must_run or self._clock() <= until):
            is_done = self._resume(None)
            assert not is_done, "work ends with a Together, so that all ranks end in the same step"
            must_run = False
        self._left_s -= self._clock() - began

    def _resume(self, value: Any) -> bool:
        """Run one piece, with the ``value`` of the previous ``Together``; return whether all work is done."""
        try:
            self._next = self._work.send(value)
        except StopIteration as done:
            self.result = done.value
            return True
        self._all_wait = self._all_wait and self._waits
        return False

    def _agree(self, sync: BetweenSteps, until: float, step: int) -> tuple[bool, bool]:
        """Return whether all ranks wait for the next ``Together``, and whether all have time left."""
        began = self._clock()
        own = [float(self._waits), float(began <= until), float(self._meeting_steps)]
        rows = sync.exchange_now("progress", lambda exchange: gather(exchange, own, self._timeout_s))
        waiting, in_time, steps = zip(*rows, strict=True)
        # The last rank to arrive waits only for the comparison; the other ranks also wait for the last rank.
        self._met, self._rest_steps = step, int(min(steps))
        self._meeting_s = self._clock() - began
        return all(waiting), all(in_time)

    @property
    def _meeting_steps(self) -> int:
        """The steps until the next comparison, so that comparisons take at most their share of all steps."""
        most = self._config.meeting_steps
        return (
            most if self._meeting_s >= most * self._share_s else max(1, ceil(self._meeting_s / self._share_s))
        )


_TIMES = ("encode_s", "decode_s", "decode_add_s")
_FRAMES = ("send_s", "receive_s", "send_s_per_nbyte", "receive_s_per_nbyte", "beside_s_per_nbyte")


class Costs:
    """The costs of codecs and frames on this host, whose machine ``ranks_per_machine`` ranks share.

    Codecs use as many threads as the calling thread does, as in an exchange.
    """

    def __init__(self, ranks_per_machine: int, config: AutoConfig = DEFAULT) -> None:
        self._sharing, self._config = ranks_per_machine, config
        self._host: HostCost | None = None
        self._codecs: dict[str, CodecCost] = {}
        self._counts: dict[str, int] = {}  # the numbers of values on which codecs were timed
        self._outdated: set[str] = set()

    def prepare(self, line: Line | None, codecs: Iterable[Codec], count: int) -> None:
        """Time frames, and codecs on synthetic gradients of a model with ``count`` values."""
        values = synthetic_gradients(min(count, self._config.timed_count))[0]
        at_once(self.time(line, codecs, values))
        self.forget_sizes()

    def forget_sizes(self) -> None:
        """Mark payload sizes as outdated, because gradients may have changed; codec times stay valid."""
        self._outdated |= self._codecs.keys()

    def environment(
        self, line: Line, codecs: Iterable[Codec], summed: Mapping[int, torch.Tensor]
    ) -> Work[Environment]:
        """Return the environment of plans with these codecs: link, host, and the codecs' costs.

        ``summed`` has a gradient, as the sum of one term, and possibly the sum of all ranks' gradients, which
        may need larger payloads. Each codec is one piece of work, and the frames are another. Of codecs that
        were already timed on about as many values, only outdated payload sizes are measured. Raises
        ``GradwireError``.
        """
        every = [*codecs]
        yield from self.time(line, every, summed[1])
        for codec in every:
            name = str(codec)
            terms = [point.terms for point in self._codecs[name].points]
            if name in self._outdated or terms != sorted(summed):
                self._codecs[name] = cost_on_other_gradients(self._codecs[name], codec, summed)
                self._outdated.discard(name)
                yield None
        found = {name: self._codecs[name] for name in map(str, every)}
        return Environment(line, found, self._frames(), threads=torch.get_num_threads())

    def time(self, line: Line | None, codecs: Iterable[Codec], values: torch.Tensor) -> Work[None]:
        """Time frames, and the codecs that weren't timed yet on about as many values as there are ``values``.

        Each codec is one piece of work, and the frames are another. Between two calls, a codec rests as long
        as between two segments on ``line``, at most ``longest_rest_s``.
        """
        nbytes, rest_s = FLOAT_NBYTES * self._config.timed_count, self._config.longest_rest_s
        if line is not None:
            rest_s = min(rest_between_segments(line, nbytes), rest_s)
        for codec in codecs:
            name, count = str(codec), values.numel()
            timed = self._counts.get(name, 0)
            if not (count <= 2 * timed and timed <= 2 * count):
                repeats = self._config.cost_repeats
                self._codecs[name] = codec_cost(codec, [values], 1, nbytes, rest_s, repeats)
                self._counts[name] = count
                self._outdated.discard(name)
                yield None
        if self._host is None:
            self._frames()
            yield None

    def _frames(self) -> HostCost:
        if self._host is None:
            try:
                self._host = measure_host(cores(), self._sharing, self._config.cost_repeats)
            except (LinkError, BrokenBarrierError):  # no local network, or a machine that stalls
                self._host = HostCost(cores=cores(), ranks_per_machine=self._sharing)
        return self._host

    # The times on all kinds of hosts, as rows of numbers.

    def row(self, codecs: Sequence[Codec]) -> list[float]:
        """Return the seconds of these codecs and of frames on this host; all 0 if anything wasn't timed."""
        names = [*map(str, codecs)]
        if self._host is None or not all(name in self._codecs for name in names):
            return [0.0] * (len(names) * (1 + 2 * len(_TIMES)) + len(_FRAMES) + 2)
        found = list[float]()
        for cost in (self._codecs[name] for name in names):
            points = cost.at(1), cost.finished
            found.append(cost.call_s)
            found += [0.0 if each is None else getattr(each, time) for each in points for time in _TIMES]
        found += [getattr(self._host, name) for name in _FRAMES]
        return [*found, self._host.cores, self._host.ranks_per_machine]

    def take_slowest(self, codecs: Sequence[Codec], rows: Rows) -> None:
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


def _with_seconds(cost: CodecCost, seconds: Sequence[float]) -> CodecCost:
    def timed(point: CodecPoint, times_s: Sequence[float]) -> CodecPoint:
        seconds_of: dict[str, Any] = dict(zip(_TIMES, times_s, strict=True))
        return replace(point, **seconds_of)

    partial, finished = seconds[1 : 1 + len(_TIMES)], seconds[1 + len(_TIMES) :]
    points = tuple(timed(each, partial) for each in cost.points)
    return replace(
        cost, points=points, call_s=seconds[0], finished=cost.finished and timed(cost.finished, finished)
    )


def typical(values: torch.Tensor, config: AutoConfig = DEFAULT) -> torch.Tensor:
    """Return the excerpt of a gradient on which codecs are measured."""
    return excerpt(values, config.timed_count)


LINE_FIELDS = len(fields(Line))
_LINKS = "a measurement of the network"
"""The name of the pieces of ``measure_line`` in errors."""


def hosts_of(link: Link) -> HostMap:
    """Return the hosts of a link's ranks. All ranks call this together. Raises ``ExchangeError``."""
    try:
        return map_hosts(link)
    except LinkError as error:
        raise ExchangeError(f"cannot determine which ranks share a host: {error}") from error


def measure_line(
    hosts: HostMap, rank: int, budget_s: float, config: AutoConfig = DEFAULT, late_s: float | None = None
) -> Work[tuple[float, ...]]:
    """Measure the link from this rank to the next rank in a ring, and return its ``Line`` as a row.

    The row is all 0 if this link wasn't measured. All ranks take part in all pieces, each of about
    ``budget_s`` or a round trip. ``late_s`` limits the wait for other ranks to begin a piece.
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
                from_all(link, bytes(1), late_s)  # so that no host takes part in two measurements at once
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


def line_of(rows: Rows) -> Line:
    """Return a link with the worst value of each field over all ranks' results of ``measure_line``."""
    lines = [Line(*row) for row in rows if any(row)]
    return Line(
        max(each.latency_s for each in lines),
        min(each.nbytes_per_s for each in lines),
        min(each.burst_nbytes for each in lines),
        min(each.duplex_share for each in lines),
    )
