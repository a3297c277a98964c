"""What an all-reduce costs on a uniform network, counted by walking the steps of its schedule.

The rules are those of the closed forms: a message starts when both its ranks have come to the step, it takes
``alpha + nbytes beta``, a rank that combines then adds for ``nbytes gamma``, and a step ends when its send,
its receive and its addition have. Both directions of a rank's link work at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gradwire.collectives import Collective
from gradwire.collectives.matching import MatchedMessage, messages


class Price(Protocol):
    """Seconds of a message, of each of its bytes, and of adding a byte."""

    @property
    def alpha_s(self) -> float: ...
    @property
    def beta_s_per_nbyte(self) -> float: ...
    @property
    def gamma_s_per_nbyte(self) -> float: ...


class Uniform(NamedTuple):
    """The price of a hop on a network where all ranks are alike."""

    alpha_s: float
    beta_s_per_nbyte: float
    gamma_s_per_nbyte: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of an all-reduce by its parts, along the chain of messages that decides it, and its bytes.

    ``hops`` are the messages of that chain; ``latency_s``, ``transfer_s`` and ``reduction_s`` what they and
    their additions take. ``sent_nbytes`` and ``received_nbytes`` are each rank's bytes on the wire.
    """

    hops: int
    latency_s: float
    transfer_s: float
    reduction_s: float
    sent_nbytes: tuple[float, ...]
    received_nbytes: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """The seconds until the last rank is done."""
        return self.latency_s + self.transfer_s + self.reduction_s


class _Path(NamedTuple):
    """The slowest way to a moment: its time first, so that paths compare by it; the rest are exact counts."""

    s: float = 0.0
    hops: int = 0
    moved_chunks: int = 0
    added_chunks: int = 0


@dataclass(frozen=True, slots=True)
class _ChunkPrice:
    """Seconds per hop, per chunk moved and per chunk added."""

    hop_s: float
    move_s: float
    add_s: float

    def path(self, hops: int, moved: int, added: int) -> _Path:
        return _Path(hops * self.hop_s + moved * self.move_s + added * self.add_s, hops, moved, added)


class _Clock:
    """One rank: when its current step began and, so far, ends."""

    def __init__(self) -> None:
        self.step = -1
        self.begin = self.end = _Path()

    def enter(self, step: int) -> _Path:
        """Return when the rank comes to ``step``, the one that it is in or the next."""
        if step != self.step:
            self.step, self.begin = step, self.end
        return self.begin


def cost(collective: Collective, world: int, nbytes: float, link: Price, *, ratio: float = 1.0) -> Cost:
    """Return what an all-reduce of ``nbytes`` bytes of float32 per rank costs on a uniform network.

    Chunks count as equal, ``nbytes / chunks`` each; real ones differ by one element at most. ``ratio`` is how
    many bytes of float32 a codec makes one byte of: it divides what travels, not what is added.

    Raises
    ------
    SpecError
        If the schedules of the ranks do not fit together.
    """
    chunk_nbytes = nbytes / collective.chunks(world)
    price = _ChunkPrice(
        link.alpha_s, chunk_nbytes / ratio * link.beta_s_per_nbyte, chunk_nbytes * link.gamma_s_per_nbyte
    )
    clocks = [_Clock() for _ in range(world)]
    sent, received = [0] * world, [0] * world
    for message in messages(collective.schedule(rank, world) for rank in range(world)):
        _pass(message, clocks[message.source], clocks[message.target], price)
        sent[message.source] += message.chunks
        received[message.target] += message.chunks
    slowest = max(clock.end for clock in clocks)
    return Cost(
        slowest.hops,
        slowest.hops * price.hop_s,
        slowest.moved_chunks * price.move_s,
        slowest.added_chunks * price.add_s,
        tuple(chunks * chunk_nbytes / ratio for chunks in sent),
        tuple(chunks * chunk_nbytes / ratio for chunks in received),
    )


def _pass(message: MatchedMessage, source: _Clock, target: _Clock, price: _ChunkPrice) -> None:
    start = max(source.enter(message.send_step), target.enter(message.recv_step))
    hops, moved = start.hops + 1, start.moved_chunks + message.chunks
    source.end = max(source.end, price.path(hops, moved, start.added_chunks))
    added = start.added_chunks + (message.chunks if message.combine else 0)
    target.end = max(target.end, price.path(hops, moved, added))
