"""Replay an exchange frame by frame, without sending a byte.

Every rank handles frames in the order of the exchange, with the same window of frames in flight and of
posted receives. The costs of a frame are in an ``Environment``:

- The rank's thread encodes, decodes, sends, and receives frames. Each operation needs a core of the machine,
  and ranks that share a machine wait for a free core (first come, first served).
- A frame departs once it has been sent and the frames before it have left the host. The frame stays in the
  receiver's kernel until the receiver reads it.
- Streams over one link or core link share it fairly (``streams``). Bytes that have passed a link arrive after
  the latency.
- An idle link passes a burst without delay, like the token bucket of a rate limiter.
- Lanes exchange one bucket each, concurrently. Each lane has its own streams, and a thread on every rank.

With free codecs and frames, one frame per chunk, and no burst, a ring equals its closed form. For other
algorithms, the replay differs from the closed form because an exchange overlaps neighbouring segments, and
sends to the next peer while frames to the previous peer are still in flight.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cache, partial

from gradwire.collectives.frame_order import AHEAD
from gradwire.costs import ExchangeCost
from gradwire.timing.environment import CodecCost, Environment, as_seen_by
from gradwire.timing.moves import Move, MoveOrder, move_order
from gradwire.timing.streams import Cores, ReplayPort, ReplayStream, Streams


@dataclass
class Replay:
    """The result of a replay: the ranks' costs, and the time that the busiest link needs for its bytes.

    With several lanes, ``ranks`` lists all ranks' costs of the first lane, then of the next lane.
    """

    ranks: list[ExchangeCost]
    line_busy_s: float

    @property
    def total_s(self) -> float:
        """The seconds until the last rank is done."""
        return max(rank.total_s for rank in self.ranks)

    @property
    def last(self) -> ExchangeCost:
        """The cost of the rank that finishes last."""
        return max(self.ranks, key=lambda rank: rank.total_s)


def replay(
    algorithm: str,
    world: int,
    count: int,
    segment_nbytes: int,
    codec: str,
    environment: Environment,
    half: str = "schedule",
    lanes: int = 1,
) -> Replay:
    """Return the replay of an exchange of ``count`` float32 values between ``world`` ranks.

    ``algorithm`` and ``segment_nbytes`` are as in a plan, ``codec`` is the spec of a codec with costs in
    ``environment``, and ``half`` is ``schedule`` for the all-reduce, or ``reduce`` or ``broadcast``.
    ``lanes`` equal buckets are exchanged concurrently, and the result contains the costs of each lane. Raises
    ``SpecError`` if the algorithm is unknown, or if the codec has no costs.
    """
    pieces = replaying(algorithm, world, count, segment_nbytes, codec, environment, half, lanes)
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            found: Replay = done.value
            return found


def replaying(
    algorithm: str,
    world: int,
    count: int,
    segment_nbytes: int,
    codec: str,
    environment: Environment,
    half: str = "schedule",
    lanes: int = 1,
) -> Generator[None, None, Replay]:
    """Compute the result of ``replay``, in pieces of about a millisecond."""
    orders = list[MoveOrder]()
    for rank in range(world):
        orders.append(move_order(algorithm, half, rank, world, count, segment_nbytes // 4))
        yield
    first_terms = world if half == "broadcast" else 1
    environment = as_seen_by(algorithm, environment)
    return (yield from _EventLoop(orders, environment.cost(codec), environment, first_terms, lanes).run())


@dataclass(slots=True, eq=False)
class _Frame:
    """A frame between two ranks; times are None until they are known.

    ``carried_nbytes`` is the frame's size on the link, which is below ``nbytes`` if NICs compress the frame.
    """

    sender: _Rank
    receiver: _Rank | None = None
    nbytes: float = 0.0
    carried_nbytes: float = 0.0
    terms: int = 1
    queued: bool = False
    left_s: float | None = None
    arrived_s: float | None = None


@dataclass(slots=True, eq=False)
class _Rank:
    """The state of one rank's thread of one lane.

    ``waits_for`` is the frame that must leave or arrive before the thread continues.
    """

    number: int
    lane: int
    moves: list[Move]
    cores: Cores
    frames: list[_Frame] = field(default_factory=list)
    at: int = 0
    encoded: bool = False
    waits_for: _Frame | None = None
    in_flight: deque[tuple[Move, _Frame]] = field(default_factory=deque)
    to_post: deque[Move] = field(default_factory=deque)
    posted_up_to: tuple[float, float] = (-1.0, 0.0)
    terms: dict[int, int] = field(default_factory=dict)
    times: ExchangeCost = field(default_factory=ExchangeCost)


_EVENTS_AT_ONCE = 256
"""The number of events in a piece of a replay; each event takes a few microseconds."""


class _EventLoop:
    """The event loop of a replay, which runs the events of its ranks, cores, and streams in time order."""

    def __init__(
        self,
        orders: list[MoveOrder],
        cost: CodecCost,
        environment: Environment,
        first_terms: int,
        lanes: int,
    ) -> None:
        world = len(orders)
        host = environment.host
        self._cost, self._host, self._header_nbytes = cost, host, environment.header_nbytes
        self._cost_of = cache(partial(cost.of, world=world))  # because it is called for every frame
        self._first_terms = first_terms
        per_machine = max(1, host.ranks_per_machine)
        usable = min(environment.usable_cores(lanes), (1 + lanes) * per_machine)
        machines = [Cores(usable) for _ in range(-(-world // per_machine))]
        self._ranks = []
        for lane in range(lanes):
            ranks = [
                _Rank(number, lane, order.moves, machines[number // per_machine])
                for number, order in enumerate(orders)
            ]
            _join(ranks)
            self._ranks += ranks
        self._network = _Network([order.is_both_ways for order in orders], environment)
        self._streams = Streams[_Frame](self._schedule)
        self._events: list[tuple[float, int, _Rank | _Frame | ReplayStream, int]] = []
        self._count = 0

    def run(self) -> Generator[None, None, Replay]:
        """Run all events and return the result; yields every ``_EVENTS_AT_ONCE`` events."""
        for rank in self._ranks:
            for _ in range(AHEAD):
                self._post(rank)
            self._schedule(0.0, rank)
        while self._events:
            now, number, subject, version = heapq.heappop(self._events)
            if number % _EVENTS_AT_ONCE == 0:
                yield
            if isinstance(subject, _Rank):
                self._continue(subject, now)
            elif isinstance(subject, ReplayStream):
                frame = self._streams.pass_first(subject, version, now)
                if frame is not None:
                    self._leave(frame, now)
            elif subject.left_s is None:
                self._depart(subject, now)
            else:
                self._arrive(subject, now)
        stuck = [rank.number for rank in self._ranks if rank.at < len(rank.moves) or rank.in_flight]
        assert not stuck, f"ranks {stuck} wait forever: their frame orders do not match"
        return Replay([rank.times for rank in self._ranks], self._network.busiest_s)

    def _schedule(self, when: float, subject: _Rank | _Frame | ReplayStream, version: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, subject, version))

    def _continue(self, rank: _Rank, now: float) -> None:
        """Run a rank's thread as far as possible at ``now``, and schedule its continuation."""
        if rank.at == len(rank.moves):
            rank.times.wait_s = max(0.0, now - rank.times.work_s)
            self._retire(rank, now, down_to=0)
            return
        move, frame = rank.moves[rank.at], rank.frames[rank.at]
        if move.receives:
            if self._reached(rank, frame, frame.arrived_s, now):
                self._receive(rank, move, frame, now)
        elif move.encodes and not rank.encoded:
            rank.encoded = True
            self._schedule(self._encode(rank, move, now), rank)
        elif self._retire(rank, now, down_to=AHEAD - 1):
            self._send(rank, move, frame, now)

    def _reached(self, rank: _Rank, frame: _Frame, when: float | None, now: float) -> bool:
        """Return whether ``now`` has reached ``when``; if not, schedule the rank to continue then.

        If ``when`` is None, the time is unknown, and the rank waits for ``frame``.
        """
        if when is None:
            rank.waits_for = frame
            return False
        if when > now:
            self._schedule(when, rank)
            return False
        return True

    def _retire(self, rank: _Rank, now: float, down_to: int) -> bool:
        """Return whether at most ``down_to`` frames of the rank are in flight; if not, the rank waits.

        Frames that have left the host are no longer in flight. A send doesn't wait for frames whose order is
        beyond the posted receives.
        """
        while len(rank.in_flight) > down_to:
            move, frame = rank.in_flight[0]
            if down_to and move.order > rank.posted_up_to:
                return True
            if not self._reached(rank, frame, frame.left_s, now):
                return False
            rank.in_flight.popleft()
        return True

    def _encode(self, rank: _Rank, move: Move, now: float) -> float:
        cost = self._cost_of(self._terms(rank, move))
        encode_s = self._cost.call_s + move.count * cost.encode_s
        adopts = move.publishes and not self._cost.exact
        decode_s = self._cost.call_s + move.count * cost.decode_s if adopts else 0.0
        rank.times.encode_s += encode_s
        rank.times.decode_s += decode_s
        return rank.cores.take(now, encode_s + decode_s)

    def _send(self, rank: _Rank, move: Move, frame: _Frame, now: float) -> None:
        frame.terms = self._terms(rank, move)
        cost = self._cost_of(frame.terms)
        frame.nbytes = self._header_nbytes + move.count * cost.nbytes
        frame.carried_nbytes = self._header_nbytes + move.count * cost.carried_nbytes
        rank.times.frames += 1
        rank.times.raw_nbytes += 4 * move.count
        rank.times.wire_nbytes += frame.nbytes
        handling_s = self._host.send_s + frame.nbytes * self._host.send_s_per_nbyte
        rank.times.handling_s += handling_s
        handed_over_s = rank.cores.take(now, handling_s)
        rank.cores.take(now, frame.nbytes * self._host.beside_s_per_nbyte)
        rank.in_flight.append((move, frame))
        self._schedule(handed_over_s, frame)
        rank.at, rank.encoded = rank.at + 1, False
        self._schedule(handed_over_s, rank)

    def _receive(self, rank: _Rank, move: Move, frame: _Frame, now: float) -> None:
        self._post(rank)
        adds = move.adds
        cost = self._cost_of(frame.terms)
        rank.terms[move.segment] = frame.terms + (self._terms(rank, move) if adds else 0)
        decode_s = self._cost.call_s + move.count * (cost.decode_add_s if adds else cost.decode_s)
        handling_s = self._host.receive_s + frame.nbytes * self._host.receive_s_per_nbyte
        rank.times.decode_s += decode_s
        rank.times.handling_s += handling_s
        rank.at += 1
        self._schedule(rank.cores.take(now, handling_s + decode_s), rank)

    def _post(self, rank: _Rank) -> None:
        """Post one more receive of a rank.

        The rank's sends depend on posted receives (``_retire``).
        """
        rank.posted_up_to = rank.to_post.popleft().order if rank.to_post else (math.inf, 0.0)

    def _depart(self, frame: _Frame, now: float) -> None:
        """Add a frame to its stream once the frames before it have left the host."""
        stream = self._network.stream(frame)
        if not frame.queued:
            frame.queued = True
            enters_s = stream.hold(now, frame.carried_nbytes)
            if enters_s > now:
                self._schedule(enters_s, frame)
                return
        self._streams.push(stream, frame, frame.carried_nbytes, now)

    def _leave(self, frame: _Frame, now: float) -> None:
        """Record that a frame's last byte left the host, and schedule its arrival after the latency."""
        frame.left_s, frame.arrived_s = now, now + self._network.latency_s(frame)
        if frame.sender.waits_for is frame:
            frame.sender.waits_for = None
            self._schedule(now, frame.sender)
        self._schedule(frame.arrived_s, frame)

    def _arrive(self, frame: _Frame, now: float) -> None:
        """Record a frame's arrival; the kernel's copy of the frame occupies a core of the receiver."""
        receiver = frame.receiver
        assert receiver is not None
        receiver.cores.take(now, frame.nbytes * self._host.beside_s_per_nbyte)
        if receiver.waits_for is frame:
            receiver.waits_for = None
            self._schedule(now, receiver)

    def _terms(self, rank: _Rank, move: Move) -> int:
        return rank.terms.get(move.segment, self._first_terms)


class _Network:
    """The links of all ranks, and the core links between groups."""

    def __init__(self, both_ways: list[bool], environment: Environment) -> None:
        lines = [environment.line_of(rank) for rank in range(len(both_ways))]
        self._latency_s = [line.latency_s for line in lines]
        rates = [
            line.nbytes_per_s * (line.duplex_share if both else 1.0)
            for line, both in zip(lines, both_ways, strict=True)
        ]
        self._out, self._in = (
            [ReplayPort(rate, line.burst_nbytes) for rate, line in zip(rates, lines, strict=True)]
            for _ in range(2)
        )
        sizes = environment.groups or (len(both_ways),)
        self._group = [number for number, size in enumerate(sizes) for _ in range(size)]
        self._up = [ReplayPort(environment.core_nbytes_per_s) for _ in sizes]
        self._down = [ReplayPort(environment.core_nbytes_per_s) for _ in sizes]
        self._streams: dict[tuple[int, int, int], ReplayStream] = {}

    def latency_s(self, frame: _Frame) -> float:
        """Return the latency between two ranks, the higher latency of their links."""
        assert frame.receiver is not None
        return max(self._latency_s[frame.sender.number], self._latency_s[frame.receiver.number])

    def stream(self, frame: _Frame) -> ReplayStream:
        """Return a lane's stream between two ranks, over their links and the core links between them."""
        assert frame.receiver is not None
        sender, receiver = frame.sender.number, frame.receiver.number
        key = sender, receiver, frame.sender.lane
        if key not in self._streams:
            ports = [self._out[sender], self._in[receiver]]
            if self._group[sender] != self._group[receiver]:
                ports += [self._up[self._group[sender]], self._down[self._group[receiver]]]
            self._streams[key] = ReplayStream(ports)
        return self._streams[key]

    @property
    def busiest_s(self) -> float:
        """The seconds that the bytes of the busiest link or core link take at that link's rate."""
        return max(port.busy_s for port in (*self._out, *self._in, *self._up, *self._down))


def _join(ranks: list[_Rank]) -> None:
    """Assign one frame to every send and the matching receive, in the order between two ranks."""
    ways = defaultdict[tuple[int, int], deque[_Frame]](deque)
    for rank in ranks:
        rank.frames = [_Frame(rank) for _ in rank.moves]
        for frame, move in zip(rank.frames, rank.moves, strict=True):
            if not move.receives:
                ways[rank.number, move.peer].append(frame)
    for rank in ranks:
        for i, move in enumerate(rank.moves):
            if move.receives:
                frame = rank.frames[i] = ways[move.peer, rank.number].popleft()
                frame.receiver = rank
                rank.to_post.append(move)
