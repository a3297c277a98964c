"""The frame: a 32-byte header, then the payload. One function writes frames, and one function validates them.

``docs/wire-format.md`` shows the fields and an example. The header contains the element count, because a
payload doesn't. The codec's number and fingerprint identify the payload's format. The sequence number and the
two checksums detect frames that were lost, repeated, reordered, or altered. The header has its own checksum,
so that its lengths are verified before they are used.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire import _native
from gradwire.deferred import torch
from gradwire.errors import FrameError

MAGIC = b"GRDW"
VERSION = 1
HEADER_NBYTES = 32
MAX_FRAME_NBYTES = 1 << 25
"""The largest frame in bytes.

Receivers always provide this much memory, because some transports abort the process if a message is too
large.
"""
AVERAGE = 0x0001
"""The flag of frames whose sum will be divided by the number of ranks.

Receivers compare this flag, because values don't show whether the sender expects an average or a sum.
"""
PARTING = 131
"""The codec number of a rank's last frame, which contains the steps of one or two ranks."""

TOS = 0x28
"""The IP type of service of connections of only float32, which NICs may compress, as in INCEPTIONN."""

_FIELDS = struct.Struct("<4sBBHIIIII")
_CHECKSUM = struct.Struct("<I")
_PLACE = struct.Struct("<II")
_STEP_SHIFT = 1
_EARLY = 1 << 14
"""The first value of step + 1 too large for a header. From this value on, headers have its low 14 bits."""
_LARGEST_STEP = (1 << 32) - 1
_CLOSE = 1 << 10
PARTING_NBYTES = HEADER_NBYTES + 2 * _PLACE.size
"""The size of the longest last frame in bytes."""
LATE = _EARLY - 1
"""The first step that a header can't contain exactly."""
_NO_NAMES: Mapping[int, str] = {}


def frame_memory(nbytes: int) -> torch.Tensor:
    """Return CPU memory for frames, usable after the caller's ``inference_mode`` has ended."""
    with torch.inference_mode(mode=False):
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def frame_of(data: bytes) -> torch.Tensor:
    """Return a copy of ``data`` as a frame."""
    if not data:  # torch.frombuffer refuses an empty buffer
        return frame_memory(0)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def memory_of(frame: torch.Tensor) -> memoryview:
    """Return the bytes of a 1-D uint8 CPU tensor, without a copy."""
    array: Any = frame.numpy()  # NumPy's stubs declare arrays as buffers only from Python 3.12 on
    return memoryview(array)


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a header: unsigned 32-bit numbers, ``codec_id`` (8 bits), and ``flags`` (16 bits)."""

    codec_id: int
    count: int
    payload_nbytes: int
    sequence: int
    fingerprint: int
    payload_crc32c: int
    flags: int = 0

    def pack(self) -> bytes:
        """Return the 32 bytes of the header, including its checksum."""
        fields = _FIELDS.pack(
            MAGIC,
            VERSION,
            self.codec_id,
            self.flags,
            self.count,
            self.payload_nbytes,
            self.sequence,
            self.fingerprint,
            self.payload_crc32c,
        )
        return fields + _CHECKSUM.pack(_native.crc32c_of_bytes(fields))

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Return the header in the first 32 bytes of ``data``. Raises ``FrameError``."""
        if len(data) < HEADER_NBYTES:
            raise FrameError(
                f"truncated: expected a header of {HEADER_NBYTES} bytes, got {len(data)}; use one version of "
                "gradwire on all ranks"
            )
        magic, version, codec_id, flags, count, nbytes, sequence, fingerprint, crc = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise FrameError(
                f"not a gradwire frame: expected {MAGIC!r} at its start, got {magic!r}; check for other "
                "programs on this connection"
            )
        if version != VERSION:
            raise FrameError(
                f"expected a frame of version {VERSION}, got one of version {version}; install the same "
                "gradwire on all ranks"
            )
        (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
        if checksum != _native.crc32c_of_bytes(data[: _FIELDS.size]):
            raise FrameError(
                "the header's checksum is wrong: the header was altered in transit; check the memory and "
                "network cards of both hosts"
            )
        return cls(codec_id, count, nbytes, sequence, fingerprint, crc, flags)


class OutOfStepError(FrameError):
    """An error for a frame of a training step other than the receiver's, or for a rank's last frame.

    ``places`` has one or two ranks of the link and their steps; None stands for the rank that sent the frame.
    ``has_left`` says whether the first of them has closed its link. ``flags`` are those of a frame of a
    different step, for ``step_of``; 0 for a last frame.
    """

    def __init__(self, places: Sequence[tuple[int | None, int]], *, has_left: bool, flags: int = 0) -> None:
        self.places, self.has_left, self.flags = tuple(places), has_left, flags
        steps = " and ".join(str(step) for _, step in self.places)
        super().__init__(
            f"the peer has closed its link at step {steps}" if has_left else f"ranks are at steps {steps}"
        )


def flags_of(step: int | None) -> int:
    """Return the flags of frames of a training step, or 0 for None."""
    if step is None:
        return 0
    number = step + 1
    return (number if number < _EARLY else _EARLY | number % _EARLY) << _STEP_SHIFT


def step_of(flags: int, near: int) -> int | None:
    """Return the step in a frame's flags; None without a step, ``LATE`` for a late step far from ``near``.

    Flags contain the low 14 bits of a late step; the result is the step with these bits nearest to ``near``.
    """
    number = flags >> _STEP_SHIFT
    if number < _EARLY:
        return number - 1 if number else None
    turns = max(round((near + 1 - number % _EARLY) / _EARLY), 1)
    nearest = turns * _EARLY + number % _EARLY - 1
    return nearest if near >= LATE and abs(nearest - near) < _CLOSE else LATE


def parting_frame(places: Sequence[tuple[int, int]], *, has_left: bool) -> torch.Tensor:
    """Return a rank's last frame, with one or two ranks' steps and whether the first rank has left."""
    payload = b"".join(_PLACE.pack(rank, min(step, _LARGEST_STEP)) for rank, step in places)
    frame = frame_memory(HEADER_NBYTES + len(payload))
    memory_of(frame)[HEADER_NBYTES:] = payload
    count = len(places) + (has_left and len(places) == 2)
    return seal_frame(frame, len(payload), codec_id=PARTING, fingerprint=0, count=count, sequence=0)


SEQUENCES = 1 << 32
"""The modulus of sequence numbers, which are 32-bit fields of the header."""


class Sequences:
    """The sequence numbers of frames in one direction, per peer."""

    def __init__(self) -> None:
        self._next = defaultdict[int, int](int)

    def take(self, peer: int) -> int:
        """Return the next frame's sequence number for ``peer``, and increment it."""
        number = self._next[peer]
        self._next[peer] = (number + 1) % SEQUENCES
        return number

    def peek(self, peer: int) -> int:
        """Return the next frame's sequence number for ``peer``, without incrementing it."""
        return self._next[peer]

    def resume(self, peer: int, number: int) -> None:
        """Continue with ``number`` as the next frame's sequence number for ``peer``."""
        self._next[peer] = number

    def has_had(self, peer: int, number: int) -> bool:
        """Return whether the last frame from or to ``peer`` had this ``number``."""
        return (number + 1) % SEQUENCES == self._next[peer]


def check_step(frame: torch.Tensor, step: int | None) -> None:
    """Raise ``OutOfStepError`` for a last frame, or if the frame's step and ``step`` exist and differ."""
    _check_step(frame, Header.unpack(_head(frame)), flags_of(step), step)


def check_not_before(frame: torch.Tensor, step: int, peer: int) -> None:
    """Raise ``OutOfStepError`` if a frame shows that ``peer`` is before ``step``, or that it left early."""
    try:
        check_step(frame, step)
    except OutOfStepError as error:
        places = [(peer if rank is None else rank, its) for rank, its in error.places]
        if len(places) == 2 or places[0][1] < step:  # the peer may be ahead, or have left after this step
            raise OutOfStepError(places, has_left=error.has_left, flags=error.flags) from error


def _check_step(frame: torch.Tensor, header: Header, flags: int, step: int | None) -> None:
    if header.codec_id == PARTING:
        payload = _payload_of(frame, header, 2 * _PLACE.size)
        if (header.count, payload.numel()) not in ((1, 8), (2, 16), (3, 16)):
            raise FrameError(
                f"expected 1 or 2 ranks in a last frame, got {header.count} in {payload.numel()} bytes; use "
                "one version of gradwire on all ranks"
            )
        raise OutOfStepError(list(_PLACE.iter_unpack(memory_of(payload))), has_left=header.count != 2)
    if (header.flags ^ flags) >> _STEP_SHIFT:
        found = None if step is None else step_of(header.flags, step)
        if found is not None:
            raise OutOfStepError([(None, found)], has_left=False, flags=header.flags)


@dataclass(frozen=True, slots=True)
class Expected:
    """The properties of the next frame that the receiver expects."""

    codec_id: int
    fingerprint: int
    count: int
    max_payload_nbytes: int
    sequence: int
    flags: int = 0
    suspect: str = ""  # the remedy in the error for an altered payload; empty for the usual remedy


def sequence_of(frame: torch.Tensor) -> int | None:
    """Return a frame's sequence number, or None for a rank's last frame. Raises ``FrameError``."""
    header = Header.unpack(_head(frame))
    return None if header.codec_id == PARTING else header.sequence


def seal_frame(
    frame: torch.Tensor,
    payload_nbytes: int,
    *,
    codec_id: int,
    fingerprint: int,
    count: int,
    sequence: int,
    flags: int = 0,
) -> torch.Tensor:
    """Write the header for the payload already in ``frame[32:]``, and return the frame as a view."""
    payload = frame[HEADER_NBYTES : HEADER_NBYTES + payload_nbytes]
    header = Header(codec_id, count, payload_nbytes, sequence, fingerprint, _native.crc32c(payload), flags)
    return _write(frame, header)


def renumber_frame(frame: torch.Tensor, sequence: int) -> torch.Tensor:
    """Set a frame's sequence number to forward it; the encoder's checksum protects it end to end."""
    return _write(frame, replace(Header.unpack(_head(frame)), sequence=sequence))


def open_frame(
    frame: torch.Tensor, expected: Expected, codec_names: Mapping[int, str] = _NO_NAMES
) -> torch.Tensor:
    """Return the payload of ``frame`` as a view, after validating the whole frame.

    ``frame`` may be longer than its header's length, because some transports don't report a message's size.
    Error messages use ``codec_names`` for the codecs. Raises ``FrameError`` before anything is decoded.
    """
    header = Header.unpack(_head(frame))
    if header.codec_id == PARTING or (header.flags ^ expected.flags) >> _STEP_SHIFT:
        if header.codec_id != PARTING and _is_out_of_order(header, expected):
            _refuse_order(header, expected, " of another step")
        _check_step(frame, header, expected.flags, step_of(expected.flags, 0))
    _check_codec(header, expected, codec_names)
    if (header.flags ^ expected.flags) & AVERAGE:
        got, due = ("an average" if it.flags & AVERAGE else "a sum" for it in (header, expected))
        raise FrameError(
            f"expected a frame of {due}, got one of {got}; make the same calls in the same order on all "
            "ranks, and pass the same average"
        )
    if header.sequence != expected.sequence:
        _refuse_order(header, expected)
    if header.count != expected.count:
        raise FrameError(
            f"expected a frame of {expected.count} elements, got {header.count}; pass tensors of the same "
            "length and use the same segment size on all ranks"
        )
    return _payload_of(frame, header, expected.max_payload_nbytes, expected.suspect)


def _is_out_of_order(header: Header, expected: Expected) -> bool:
    """Return whether a frame of a different step repeats the previous frame, or follows a lost frame.

    Otherwise, it has the expected sequence number, or a number of another exchange over the same link. The
    number of a repeated frame is one too low. If the last frame of this step was lost, it is one too high.
    """
    theirs, ours = header.flags >> _STEP_SHIFT, expected.flags >> _STEP_SHIFT
    if 0 in (theirs, ours):
        return False
    ahead = theirs - ours
    if theirs >= _EARLY and ours >= _EARLY:  # the low bits wrap around
        ahead = (ahead + _EARLY // 2) % _EARLY - _EARLY // 2
    return header.sequence - expected.sequence == (1 if ahead > 0 else -1)


def _refuse_order(header: Header, expected: Expected, of: str = "") -> None:
    raise FrameError(
        f"out of order: expected frame {expected.sequence}, got frame {header.sequence}{of}; frames were "
        "lost, repeated or reordered"
    )


def _payload_of(frame: torch.Tensor, header: Header, most: int, suspect: str = "") -> torch.Tensor:
    size = header.payload_nbytes
    if size > most:
        raise FrameError(
            f"oversized: expected a payload of at most {most} bytes, got one of {size}; use the same codec "
            "on all ranks"
        )
    payload = frame[HEADER_NBYTES : HEADER_NBYTES + size]
    if payload.numel() < size:
        raise FrameError(
            f"truncated: expected a payload of {size} bytes, got {payload.numel()}; use one version of "
            "gradwire on all ranks"
        )
    if _native.crc32c(payload) != header.payload_crc32c:
        advice = suspect or "; check the memory and network cards of both hosts"
        raise FrameError(f"the payload's checksum is wrong: the payload was altered in transit{advice}")
    return payload


def _check_codec(header: Header, expected: Expected, names: Mapping[int, str]) -> None:
    got, due = (names.get(i, f"number {i}") for i in (header.codec_id, expected.codec_id))
    if header.codec_id != expected.codec_id:
        raise FrameError(f"the codec differs: expected {due}, got {got}; use the same codec on all ranks")
    if header.fingerprint != expected.fingerprint:
        raise FrameError(
            f"the parameters of the codec {due} differ: expected the fingerprint "
            f"{expected.fingerprint:#010x}, got {header.fingerprint:#010x}; use the same spec on all ranks"
        )


def _head(frame: torch.Tensor) -> bytes:
    return bytes(memory_of(frame)[:HEADER_NBYTES])


def _write(frame: torch.Tensor, header: Header) -> torch.Tensor:
    memory_of(frame)[:HEADER_NBYTES] = header.pack()
    return frame[: HEADER_NBYTES + header.payload_nbytes]
