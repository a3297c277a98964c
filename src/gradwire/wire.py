"""The frame: a 32-byte header, then the payload. One function writes frames, and one validates them.

``docs/wire-format.md`` shows the fields and an example. The header contains the element count because
a payload doesn't; the codec's number and fingerprint say how to read the payload; the sequence
number and the two checksums detect frames that were lost, repeated, reordered, or altered. The header has its
own checksum, so that no length is trusted before it is verified.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradwire import _native
from gradwire.deferred import torch
from gradwire.errors import FrameError

MAGIC = b"GRDW"
VERSION = 1
HEADER_NBYTES = 32
MAX_FRAME_NBYTES = 1 << 25
"""The largest frame. Receivers always provide this much memory, because some transports abort the process
if a message is too large."""
AVERAGE = 0x0001
"""The flag of frames whose sum will be divided by the number of ranks; the values don't show it."""

TOS = 0x28
"""The IP type of service of connections that carry nothing but float32, which NICs may compress: INCEPTIONN's
mark for gradients."""

_FIELDS = struct.Struct("<4sBBHIIIII")
_CHECKSUM = struct.Struct("<I")
_NO_NAMES: Mapping[int, str] = {}


def frame_memory(nbytes: int) -> torch.Tensor:
    """Return memory for frames, on the CPU and valid after the caller's ``inference_mode`` has ended."""
    with torch.inference_mode(mode=False):
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def memory_of(frame: torch.Tensor) -> memoryview:
    """Return the bytes of a 1-D uint8 CPU tensor, without a copy."""
    array: Any = frame.numpy()  # a buffer, which NumPy's stubs tell from Python 3.12 on
    return memoryview(array)


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a header: unsigned 32-bit numbers, ``codec_id`` (a byte), and ``flags``."""

    codec_id: int
    count: int
    payload_nbytes: int
    sequence: int
    fingerprint: int
    payload_crc32c: int
    flags: int = 0

    def pack(self) -> bytes:
        """Return the 32 bytes of the header, including its own checksum."""
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
        """Read a header from the first 32 bytes of ``data``. Raises ``FrameError``."""
        if len(data) < HEADER_NBYTES:
            raise FrameError(f"truncated: a header has {HEADER_NBYTES} bytes, but {len(data)} came")
        magic, version, codec_id, flags, count, nbytes, sequence, fingerprint, crc = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise FrameError(f"not a gradwire frame: it begins with {magic!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise FrameError(f"the frame has version {version}, but this gradwire reads version {VERSION}")
        (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
        if checksum != _native.crc32c_of_bytes(data[: _FIELDS.size]):
            raise FrameError("the header's checksum is wrong: the header was altered on the way")
        if flags & ~AVERAGE:
            raise FrameError(
                f"the frame has flags {flags:#06x}, but version {VERSION} knows {AVERAGE:#06x} only"
            )
        return cls(codec_id, count, nbytes, sequence, fingerprint, crc, flags)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the receiver expects of the next frame."""

    codec_id: int
    fingerprint: int
    count: int
    max_payload_nbytes: int
    sequence: int
    flags: int = 0
    suspect: str = ""
    """What else may have altered a payload, for errors."""


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
    """Write the header for the payload that is already in ``frame[32:]``; return the frame, a view."""
    payload = frame[HEADER_NBYTES : HEADER_NBYTES + payload_nbytes]
    header = Header(codec_id, count, payload_nbytes, sequence, fingerprint, _native.crc32c(payload), flags)
    return _write(frame, header)


def renumber_frame(frame: torch.Tensor, sequence: int) -> torch.Tensor:
    """Give a validated frame a new sequence number, to forward it; return the frame, a view.

    The payload keeps its encoder's checksum, which therefore protects it from end to end.
    """
    return _write(frame, replace(Header.unpack(_head(frame)), sequence=sequence))


def open_frame(
    frame: torch.Tensor, expected: Expected, codec_names: Mapping[int, str] = _NO_NAMES
) -> torch.Tensor:
    """Return the payload, a view of ``frame``, after validating the whole frame.

    ``frame`` may be longer than the header says, because some transports don't report a message's size.
    Error messages use ``codec_names`` for the codecs. Raises ``FrameError`` before anything is decoded.
    """
    header = Header.unpack(_head(frame))
    _check_codec(header, expected, codec_names)
    if header.flags != expected.flags:
        came, wanted = ("an average" if it.flags & AVERAGE else "a sum" for it in (header, expected))
        raise FrameError(
            f"the frame is part of {came}, but {wanted} is expected; let all ranks make the same calls in "
            "the same order, with the same average="
        )
    if header.sequence != expected.sequence:
        raise FrameError(
            f"out of order: frame {header.sequence} came where frame {expected.sequence} is due, "
            "so frames were lost, repeated or reordered"
        )
    if header.count != expected.count:
        raise FrameError(
            f"the frame holds {header.count} elements, but {expected.count} are expected; "
            "do all ranks pass tensors of one length and use one segment size?"
        )
    size, most = header.payload_nbytes, expected.max_payload_nbytes
    if size > most:
        raise FrameError(f"oversized: a payload of {size} bytes is announced, but {most} bytes is the most")
    payload = frame[HEADER_NBYTES : HEADER_NBYTES + size]
    if payload.numel() < size:
        raise FrameError(f"truncated: a payload of {size} bytes is announced, but {payload.numel()} came")
    if _native.crc32c(payload) != header.payload_crc32c:
        raise FrameError(
            f"the payload's checksum is wrong: the payload was altered on the way{expected.suspect}"
        )
    return payload


def _check_codec(header: Header, expected: Expected, names: Mapping[int, str]) -> None:
    came, wanted = (names.get(i, f"number {i}") for i in (header.codec_id, expected.codec_id))
    if header.codec_id != expected.codec_id:
        raise FrameError(
            f"the codec differs: {came} came, but {wanted} is expected; give all ranks the same codec"
        )
    if header.fingerprint != expected.fingerprint:
        raise FrameError(
            f"the parameters of the codec {wanted} differ: fingerprint {header.fingerprint:#010x} came, but "
            f"{expected.fingerprint:#010x} is expected; give all ranks the same spec"
        )


def _head(frame: torch.Tensor) -> bytes:
    return bytes(memory_of(frame)[:HEADER_NBYTES])


def _write(frame: torch.Tensor, header: Header) -> torch.Tensor:
    memory_of(frame)[:HEADER_NBYTES] = header.pack()
    return frame[: HEADER_NBYTES + header.payload_nbytes]
