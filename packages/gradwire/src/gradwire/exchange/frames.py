"""The frames of one exchange: buffers that go round, sequence numbers, the way in and out of the codec."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from gradwire.codecs import TABLE, Codec
from gradwire.errors import ExchangeError, FrameError, LinkError, copied
from gradwire.links.base import Link, Receiving
from gradwire.wire import (
    HEADER_NBYTES,
    LATE,
    MAX_FRAME_NBYTES,
    Expected,
    OutOfStepError,
    check_step,
    frame_memory,
    open_frame,
    parting_frame,
    renumber_frame,
    seal_frame,
    step_of,
)

_SEQUENCES = 1 << 32  # the header's field wraps around
_incoming = weakref.WeakKeyDictionary["Link", "Buffers"]()
_CODEC_NAMES = {row.wire_id: row.name for row in TABLE}


class Buffers:
    """Frame buffers of one size that go round, so that their pages stay mapped and warm."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[torch.Tensor] = []

    def take(self) -> torch.Tensor:
        """Return an unused buffer."""
        try:
            return self._free.pop()
        except IndexError:  # asking first would let another thread come between
            return frame_memory(self._nbytes)

    def give(self, buffer: torch.Tensor) -> None:
        """Give a buffer back."""
        self._free.append(buffer)


@dataclass(slots=True)
class Outgoing:
    """A sealed frame, the buffer that it lies in and where the buffer belongs.

    NICs may compress the last ``floats_nbytes``.
    """

    frame: torch.Tensor
    buffer: torch.Tensor
    home: Buffers
    sequence: int
    floats_nbytes: int = 0


class Sequences:
    """Counts the frames per peer, for one direction."""

    def __init__(self, first: int = 0) -> None:
        self._next = defaultdict[int, int](lambda: first)

    def take(self, peer: int) -> int:
        """Return the number of the next frame and count it."""
        number = self._next[peer]
        self._next[peer] = (number + 1) % _SEQUENCES
        return number


class Framer:
    """Turns segments into frames with one codec, and back through the door.

    ``outgoing`` holds, by their size, the buffers of framers that share them; by default it has its own.
    ``floats`` says whether all values end the frames as float32, which NICs may compress.
    """

    def __init__(self, codec: Codec, segment_count: int, outgoing: dict[int, Buffers] | None = None) -> None:
        self.codec = codec
        self._fingerprint = codec.fingerprint
        self._names = _CODEC_NAMES | {codec.wire_id: codec.name}
        self.floats = codec.sends_floats
        self._suspect = f"; do NICs on the way have the codec of {codec}?" if self.floats else ""
        nbytes = HEADER_NBYTES + codec.max_nbytes(segment_count)
        self._outgoing = ({} if outgoing is None else outgoing).setdefault(nbytes, Buffers(nbytes))

    def encode(
        self,
        x: torch.Tensor,
        sequence: int,
        flags: int = 0,
        count: int | None = None,
        encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> Outgoing:
        """Encode ``x`` straight into a frame, whose header says ``count`` instead where that is given.

        ``encode`` does it, as the codec's own would.
        """
        buffer = self._outgoing.take()
        frame = seal_frame(
            buffer,
            (encode or self.codec.encode)(x, buffer[HEADER_NBYTES:]).numel(),
            codec_id=self.codec.wire_id,
            fingerprint=self._fingerprint,
            count=x.numel() if count is None else count,
            sequence=sequence,
            flags=flags,
        )
        return Outgoing(frame, buffer, self._outgoing, sequence, x.nbytes if self.floats else 0)

    def open(
        self, frame: torch.Tensor, count: int, sequence: int, flags: int = 0, most_nbytes: int | None = None
    ) -> torch.Tensor:
        """Return the payload of a frame that came in, of ``most_nbytes`` or what ``count`` values need.

        Raises ``FrameError``.
        """
        most = self.codec.max_nbytes(count) if most_nbytes is None else most_nbytes
        own = self.codec.wire_id, self._fingerprint
        expected = Expected(*own, count, most, sequence, flags, self._suspect)
        return open_frame(frame, expected, self._names)


def incoming_buffers(link: Link) -> Buffers:
    """Return buffers that hold any frame; the part that no frame fills takes address space, not memory.

    All exchanges over a link share them, one of which is at work at a time: so plans that come and go leave
    no memory behind, and take none for each.
    """
    if link not in _incoming:
        _incoming[link] = Buffers(MAX_FRAME_NBYTES)
    return _incoming[link]


def renumber(outgoing: Outgoing, sequence: int) -> None:
    """Give a frame that is sent once more its next number."""
    outgoing.frame, outgoing.sequence = renumber_frame(outgoing.frame, sequence), sequence


# Why an exchange fails whose ranks are at different training steps, in words and for the peers.
#
# Every frame names its sender's step. A rank that receives a frame of another step sends all peers a last
# frame, which names the ranks that differ. They pass it on, so that every rank raises the same reason.

ADVICE = "let all ranks load the same checkpoint, and take the same number of steps"
_MOST = 64
"""The frames of one peer that are read for its last one: more than an exchange has under way."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two ranks of a link at different steps; ``has_left`` says that the first one has closed its link."""

    places: tuple[tuple[int, int], tuple[int, int]]
    has_left: bool = False

    def in_words(self, link: Link) -> str:
        """Return the sentence for an error."""
        (one, its_step), (other, step) = self.places
        where, rest = _step(its_step), f"but {link.name_of(other)} is at {_step(step)}"
        if self.has_left:
            return (
                f"{link.name_of(one)} has closed its link after {where}, {rest}; look there for an error, or "
                "let all ranks take the same number of steps"
            )
        return f"{link.name_of(one)} is at {where}, {rest}; {ADVICE}"


def difference(link: Link, error: BaseException, peer: int | None) -> Difference | None:
    """Return how ranks differ, if ``error``, of a frame from ``peer``, says so."""
    if not isinstance(error, OutOfStepError) or link.step is None:
        return None
    exact = step_of(error.flags, link.step)  # the door knows flags alone, which repeat
    places = [
        (rank, step if each is not None or exact is None else exact)
        for each, step in error.places
        if (rank := peer if each is None else each) is not None
    ]
    if len(places) == 1:
        places.append((link.rank, link.step))
    if len(places) != 2 or places[0][1] == places[1][1] or any(rank >= link.world for rank, _ in places):
        return None
    return Difference((places[0], places[1]), error.has_left)


def overheard(link: Link, posted: Iterable[tuple[int, Receiving]] = ()) -> Difference | None:
    """Return how ranks differ, if a frame that has come already says so; for a link that has failed.

    ``posted`` are abandoned receives, with their peers.
    """
    if link.step is None or not link.HAS_PARTINGS:
        return None
    for peer, receiving in posted:
        found = _difference_in(link, receiving, peer)
        if found is not None:
            return found
    buffers = incoming_buffers(link)
    for peer in range(link.world):
        for _ in range(_MOST if peer != link.rank else 0):
            try:
                receiving = link.irecv(peer, buffers.take())
                receiving.wait(0.0)
            except LinkError:
                break
            found = _difference_in(link, receiving, peer)
            if found is not None:
                return found
    return None


def leave(link: Link, found: Difference | None) -> None:
    """Close a link; the peers get to know the step of this rank, or how ranks differ."""
    if link.step is None:
        link.close()
    elif found is None:
        link.leave(parting_frame([(link.rank, link.step)], has_left=True))
    else:
        link.leave(parting_frame(found.places, has_left=found.has_left))


class Transport:
    """A link until its first failure, which ends all exchanges over it.

    Attributes
    ----------
    failure
        Why the exchange is of no further use; None while it can be used. The only place that knows.
    difference
        Which ranks are at different training steps, if an exchange has failed for that.
    """

    def __init__(self, link: Link) -> None:
        self.failure: str | None = None
        self.difference: Difference | None = None
        self._link = link
        self._error: BaseException | None = None  # a copy, where others gave up with one

    def check(self) -> None:
        """Raise a copy of what ``give_up`` got, or ``ExchangeError`` where another failure came first."""
        if self._error is not None:
            raise copied(self._error)
        if self.failure is not None:
            raise ExchangeError(f"this exchange can no longer be used ({self.failure}); make a new one")

    def give_up(self, reason: BaseException | str) -> None:
        """Refuse all later exchanges, with the first reason; what is under way goes on."""
        if self.failure is None:
            self._error = copied(reason) if isinstance(reason, BaseException) else None
            self.failure = str(reason) or type(reason).__name__

    def close(self, reason: BaseException | str) -> None:
        """Give up, and close the link, so that the peers learn of it. May be called twice."""
        self.give_up(reason)
        leave(self._link, self.difference)

    def note_difference(
        self, error: BaseException, peer: int | None = None, posted: Iterable[tuple[int, Receiving]] = ()
    ) -> bool:
        """Find out whether ranks are at different steps, after an error; ``close`` tells the peers then."""
        if self.difference is None and isinstance(error, (FrameError, LinkError)):
            self.difference = difference(self._link, error, peer)
        if self.difference is None and isinstance(error, LinkError):
            self.difference = overheard(self._link, posted)
        return self.difference is not None


def _difference_in(link: Link, receiving: Receiving, peer: int) -> Difference | None:
    try:
        check_step(receiving.wait(0.0), link.step)
    except OutOfStepError as error:
        found = difference(link, error, peer)
        # A peer may have ended this exchange, and be on its way in the next one, when this rank's link fails.
        went_on = found is not None and found.places == ((peer, (link.step or 0) + 1), (link.rank, link.step))
        return None if went_on and all(each is None for each, _ in error.places) else found
    except (FrameError, LinkError):
        pass
    return None


def _step(step: int) -> str:
    return f"step {step}" + (" or later" if step == LATE else "")
