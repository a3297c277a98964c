"""The frames of an exchange: buffers, sequence numbers, encoding, and validation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from gradwire import wire
from gradwire.codecs import TABLE, Codec
from gradwire.errors import ExchangeError, FrameError, LinkError, copied
from gradwire.links.base import Link, Receiving

_incoming = weakref.WeakKeyDictionary["Link", "Buffers"]()
_CODEC_NAMES = {row.wire_id: row.name for row in TABLE}
Encode = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function that writes a chunk's payload to memory, and returns the payload as a view."""


class Buffers:
    """Recycled frame buffers of one size, whose pages stay mapped and in the cache."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[torch.Tensor] = []

    def take(self) -> torch.Tensor:
        """Return a buffer that is not in use."""
        try:
            return self._free.pop()
        except IndexError:  # a test beforehand would race with other threads
            return wire.frame_memory(self._nbytes)

    def give(self, buffer: torch.Tensor) -> None:
        """Return a buffer to the pool."""
        self._free.append(buffer)


@dataclass(slots=True)
class Outgoing:
    """A sealed frame, its buffer, and the buffer's pool. NICs may compress the last ``floats_nbytes``."""

    frame: torch.Tensor
    buffer: torch.Tensor
    home: Buffers
    sequence: int
    floats_nbytes: int = 0


class Framer:
    """The encoder of segments into frames of one codec, and the validator of received frames.

    Framers may share ``outgoing``, the buffers by size. ``floats`` says whether NICs may compress the frames,
    which then end with all values as float32.
    """

    def __init__(self, codec: Codec, segment_count: int, outgoing: dict[int, Buffers] | None = None) -> None:
        self.codec = codec
        self._fingerprint = codec.fingerprint
        self._names = _CODEC_NAMES | {codec.wire_id: codec.name}
        self.floats = codec.sends_floats
        self._suspect = f"; check that NICs on the link have the codec of {codec}" if self.floats else ""
        nbytes = wire.HEADER_NBYTES + codec.max_nbytes(segment_count)
        self._outgoing = ({} if outgoing is None else outgoing).setdefault(nbytes, Buffers(nbytes))

    def encode(
        self,
        x: torch.Tensor,
        sequence: int,
        flags: int = 0,
        count: int | None = None,
        encode: Encode | None = None,
    ) -> Outgoing:
        """Return a sealed frame with ``x``; its header has ``count``, by default the length of ``x``."""
        buffer = self._outgoing.take()
        frame = wire.seal_frame(
            buffer,
            (encode or self.codec.encode)(x, buffer[wire.HEADER_NBYTES :]).numel(),
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
        """Return a received frame's payload. Raises ``FrameError``, also for a payload above ``most_nbytes``.

        By default, a payload has at most the size of the codec's largest payload for ``count`` values.
        """
        most = self.codec.max_nbytes(count) if most_nbytes is None else most_nbytes
        codec = self.codec.wire_id, self._fingerprint
        return wire.open_frame(
            frame, wire.Expected(*codec, count, most, sequence, flags, self._suspect), self._names
        )


def incoming_buffers(link: Link) -> Buffers:
    """Return the link's receive buffers, which fit any frame.

    All exchanges over a link share these buffers, because only one exchange runs at a time. So a new plan
    neither allocates nor leaks memory. Unused pages occupy address space, but no memory.
    """
    if link not in _incoming:
        _incoming[link] = Buffers(wire.MAX_FRAME_NBYTES)
    return _incoming[link]


# The failure of an exchange whose ranks are at different training steps: detection, text, and propagation.
#
# Every frame has its sender's step. A rank that receives a frame of a different step sends all peers a last
# frame, which lists the ranks that differ. The peers forward it, so that every rank raises the same reason.

ADVICE = "load the same checkpoint on all ranks, and run the same number of steps"
_MOST = 64
"""The largest number of frames to read in search of a peer's last frame; more than are ever in flight."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two ranks of a link at different steps; ``has_left`` says whether the first rank closed its link."""

    places: tuple[tuple[int, int], tuple[int, int]]
    has_left: bool = False

    def in_words(self, link: Link) -> str:
        """Return the difference as an error message."""
        (one, its_step), (other, step) = self.places
        where, rest = _step(its_step), f"but {link.name_of(other)} is at {_step(step)}"
        if self.has_left:
            return (
                f"{link.name_of(one)} has closed its link after {where}, {rest}; check {link.name_of(one)} "
                "for an error, and run the same number of steps on all ranks"
            )
        return f"{link.name_of(one)} is at {where}, {rest}; {ADVICE}"


def difference(link: Link, error: BaseException, peer: int | None) -> Difference | None:
    """Return the step difference in ``error``, which a frame from ``peer`` caused, or None."""
    if not isinstance(error, wire.OutOfStepError) or link.step is None:
        return None
    exact = wire.step_of(error.flags, link.step)  # a header has only the low bits of a late step
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
    """Return the step difference in a frame that arrived before a failure, also in ``posted`` receives."""
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
    """Send the peers a last frame, with this rank's step or the step difference, and close the link."""
    if link.step is None:
        link.close()
    elif found is None:
        link.leave(wire.parting_frame([(link.rank, link.step)], has_left=True))
    else:
        link.leave(wire.parting_frame(found.places, has_left=found.has_left))


class Transport:
    """The failure state of an exchange over a link: the first failure closes the link and ends later calls.

    ``failure`` is the reason why the exchange is unusable, or None. ``difference`` has the ranks at different
    training steps, if the exchange failed for that reason.
    """

    def __init__(self, link: Link) -> None:
        self.failure: str | None = None
        self.difference: Difference | None = None
        self._link = link
        self._error: BaseException | None = None  # a copy of the error passed to give_up

    def check(self) -> None:
        """Raise the first failure, if any: a copy of the error given to ``give_up``, or ``ExchangeError``."""
        if self._error is not None:
            raise copied(self._error)
        if self.failure is not None:
            raise ExchangeError(
                f"this exchange can no longer be used ({self.failure}); create a new exchange"
            )

    def give_up(self, reason: BaseException | str) -> None:
        """Refuse all later exchanges, for the first reason; frames in flight are still delivered."""
        if self.failure is None:
            self._error = copied(reason) if isinstance(reason, BaseException) else None
            self.failure = str(reason) or type(reason).__name__

    def close(self, reason: BaseException | str) -> None:
        """Refuse later exchanges and close the link, which notifies the peers; may be called twice."""
        self.give_up(reason)
        leave(self._link, self.difference)

    def note_difference(
        self, error: BaseException, peer: int | None = None, posted: Iterable[tuple[int, Receiving]] = ()
    ) -> Difference | None:
        """Return the different steps that caused an error, if any, which ``close`` sends to the peers."""
        if self.difference is None and isinstance(error, (FrameError, LinkError)):
            self.difference = difference(self._link, error, peer)
        if self.difference is None and isinstance(error, LinkError):
            self.difference = overheard(self._link, posted)
        return self.difference


def _difference_in(link: Link, receiving: Receiving, peer: int) -> Difference | None:
    try:
        frame = receiving.wait(0.0)
        wire.check_step(frame, link.step)
    except wire.OutOfStepError as error:
        if link.is_repeated(peer, frame):
            return None
        found = difference(link, error, peer)
        # A peer may have finished this exchange and started the next one when this rank's link fails.
        went_on = found is not None and found.places == ((peer, (link.step or 0) + 1), (link.rank, link.step))
        return None if went_on and all(each is None for each, _ in error.places) else found
    except (FrameError, LinkError):
        pass
    return None


def _step(step: int) -> str:
    return f"step {step}" + (" or later" if step == wire.LATE else "")
