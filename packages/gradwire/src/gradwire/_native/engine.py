"""The native engine, which runs a bucket's exchange over TCP connections without the interpreter lock."""

from __future__ import annotations

import atexit
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gradwire._native import _core, _obey_environment, _three, threads
from gradwire.deferred import torch

End = _core.End
Engine = _core.Engine
Result = _core.Result
Status = _core.Status

# Exit handlers run in reverse order. This one is registered early, so it runs after the handlers in which
# threads may end.
atexit.register(_core.hold_threads)

Peer = tuple[int, int, bytes, int, int, int]
"""A peer's rank, descriptor, partial length, low-water mark, and next sequence numbers (sent, received)."""


_Three = tuple[int, int, int]
_Part = tuple[
    int,
    tuple[str, _Three, _Three, int, int, bool],
    tuple[int, int, int, int] | None,
    tuple[int, int, int, int, int] | None,
]


class NativeState(NamedTuple):
    """The state of an idle connection, whose socket native code can use.

    Attributes
    ----------
    fd
        The socket's descriptor.
    length
        The part of the next frame's length that has arrived.
    low_water
        The socket's ``SO_RCVLOWAT``.
    """

    fd: int
    length: bytes
    low_water: int


@dataclass(frozen=True, slots=True)
class NativeActions:
    """One rank's schedule, in the engine's format.

    Attributes
    ----------
    rows
        The rows of ``gradwire.collectives.frame_order.action_rows``, concatenated.
    segments
        The number of distinct segments.
    segment_count
        The largest number of values in a segment.
    """

    rows: array[int]
    segments: int
    segment_count: int


@dataclass(frozen=True, slots=True)
class NativeFormat:
    """A codec for the engine: the name of its compiled format, the format's parameters, and header fields."""

    name: str
    params: tuple[int, ...]
    of_sums: tuple[int, ...]
    codec_id: int
    fingerprint: int
    exact: bool


@dataclass(frozen=True, slots=True)
class NativeErrors:
    """The tensors for encoding errors: float64 sums per range and, if requested, the error of each value."""

    borders: torch.Tensor
    sums: torch.Tensor
    lost: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class NativeCopies:
    """The positions (int64) of parameters in the bucket and in the values, between which they are copied."""

    bucket: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    borders: torch.Tensor


@dataclass(frozen=True, slots=True)
class NativePart:
    """The values that one codec encodes (1-D float32), with the tensors for encoding errors, and copies."""

    values: torch.Tensor
    codec: NativeFormat
    errors: NativeErrors | None = None
    copies: NativeCopies | None = None


class NativeDevice(Protocol):
    """The codec of a bucket whose memory the engine can't read: it encodes and decodes segments."""

    def encode(self, number: int, memory: memoryview) -> int:
        """Encode the segment of the action ``number`` to ``memory``, and return the payload's size."""

    def take(self, number: int, memory: memoryview) -> None:
        """Add or store a payload of the action ``number``. ``memory`` is only valid during this call."""


def run(
    engine: _core.Engine,
    peers: Sequence[Peer],
    actions: NativeActions,
    parts: Sequence[NativePart],
    *,
    flags: int,
    ranks: int,
    device: NativeDevice | None,
    timeout_s: float,
    times: tuple[float, float, float],
) -> _core.Result:
    """Run a schedule over the peers' connections, which have no frames in flight.

    A fault, such as a lost peer, isn't raised, but is the result's ``status``. ``device`` encodes and decodes
    a bucket that isn't in host memory; an error that it raises ends the run. ``times`` are the times in the
    link's ``Activity``. The result contains the costs and the state of all connections. On the main thread, a
    wait ends soon after a signal whose handler raises an exception.
    """
    _obey_environment()
    return engine.run(
        peers,
        *actions.rows.buffer_info(),
        actions.segments,
        actions.segment_count,
        [_part_of(each) for each in parts],
        flags,
        float(ranks),
        device,
        timeout_s,
        times,
        threads(),
        threading.current_thread() is threading.main_thread(),
    )


def _part_of(part: NativePart) -> _Part:
    codec = part.codec
    numbers = _three(codec.params), _three(codec.of_sums)
    return (
        part.values.data_ptr(),
        (codec.name, *numbers, codec.codec_id, codec.fingerprint, codec.exact),
        None if part.errors is None else _errors_of(part.errors),
        None if part.copies is None else _copies_of(part.copies),
    )


def _errors_of(errors: NativeErrors) -> tuple[int, int, int, int]:
    lost = 0 if errors.lost is None else errors.lost.data_ptr()
    return lost, errors.borders.data_ptr(), errors.sums.data_ptr(), errors.borders.numel() - 1


def _copies_of(copies: NativeCopies) -> tuple[int, int, int, int, int]:
    tensors = copies.bucket, copies.starts, copies.counts, copies.borders
    bucket, starts, counts, borders = (each.data_ptr() for each in tensors)
    return copies.counts.numel(), bucket, starts, counts, borders
