"""The native engine, which runs a bucket's exchange over TCP connections without the interpreter lock."""

from __future__ import annotations

import atexit
import threading
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gradwire._native import _core, _obey_environment, threads
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

CodecRow = tuple[str, tuple[int, int, int], tuple[int, int, int], int, int, bool]
"""A codec's compiled format, its parameters, those for sums, and its wire id, fingerprint, and ``EXACT``.

The format of a part with a coder is "".
"""


class NativeState(NamedTuple):
    """The state of an idle connection, whose socket native code can use."""

    fd: int
    length: bytes
    """The part of the next frame's length that has arrived."""
    low_water: int
    """The socket's ``SO_RCVLOWAT``."""


class NativeActions(NamedTuple):
    """One rank's schedule, in the engine's format."""

    rows: array[int]
    """The rows of ``gradwire.collectives.frame_order.action_rows``, concatenated."""
    segments: int
    """The number of distinct segments."""
    segment_count: int
    """The largest number of values in a segment."""


class NativePart(NamedTuple):
    """The values that one codec encodes."""

    values: torch.Tensor
    codec: CodecRow
    errors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None
    """The borders of ranges (int64), a sum for each range (float64), and each value's error, if requested."""
    copies: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None
    """The bucket, and the starts, counts, and borders of parameters (int64) to copy between it and values."""
    most: dict[int, int] | None = None
    """The largest sizes of payloads, by the number of values, if the part has a coder."""


class NativeCoder(Protocol):
    """The encoder and decoder of segments that the engine can't code: on a device, or with a Python codec."""

    def encode(self, number: int, memory: memoryview) -> int:
        """Encode the segment of the action ``number`` to ``memory``, and return the payload's size."""

    def sent(self, number: int, memory: memoryview) -> None:
        """Measure the error of the payload that ``encode`` wrote, and adopt the values of finished sums."""

    def take(self, number: int, memory: memoryview) -> None:
        """Add or store a payload of the action ``number``. ``memory`` is only valid during a call."""


_Part = tuple[
    int,
    CodecRow,
    tuple[int, int, int, int] | None,
    tuple[int, int, int, int, int] | None,
    dict[int, int] | None,
]


def run(
    engine: _core.Engine,
    peers: Sequence[Peer],
    actions: NativeActions,
    parts: Sequence[NativePart],
    *,
    flags: int,
    ranks: int,
    coder: NativeCoder | None,
    timeout_s: float,
    times: tuple[float, float, float],
) -> _core.Result:
    """Run a schedule over the peers' connections, which have no frames in flight.

    A fault, such as a lost peer, isn't raised, but is the result's ``status``. ``coder`` encodes and decodes
    the parts that have ``most``; an error that it raises ends the run. ``times`` are the times in the link's
    ``Activity``. The result contains the costs and the state of all connections. On the main thread, a wait
    ends soon after a signal whose handler raises an exception.
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
        coder,
        timeout_s,
        times,
        threads(),
        threading.current_thread() is threading.main_thread(),
    )


def _part_of(part: NativePart) -> _Part:
    errors: tuple[int, int, int, int] | None = None
    copies: tuple[int, int, int, int, int] | None = None
    if part.errors is not None:
        borders, sums, lost = part.errors
        of_lost = 0 if lost is None else lost.data_ptr()
        errors = of_lost, borders.data_ptr(), sums.data_ptr(), borders.numel() - 1
    if part.copies is not None:
        bucket, starts, counts, ends = (each.data_ptr() for each in part.copies)
        copies = part.copies[2].numel(), bucket, starts, counts, ends
    return part.values.data_ptr(), part.codec, errors, copies, part.most
