"""The frames of one exchange: buffers that go round, sequence numbers, the way in and out of the codec."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gradwire.codecs import TABLE, Codec
from gradwire.links.base import Link
from gradwire.wire import (
    HEADER_NBYTES,
    MAX_FRAME_NBYTES,
    Expected,
    frame_memory,
    open_frame,
    renumber_frame,
    seal_frame,
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
        """Return a buffer that nobody uses."""
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
