"""How far the clocks of two ranks are apart, by messages over the link.

The leader notes its clock before and after a round trip, the peer notes its own in between. Its reading
belongs somewhere into that interval, so the offset from the middle is right within half of the round trip;
of several trips the shortest counts (Cristian, "Probabilistic clock synchronization", 1989).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.deferred import torch
from gradwire.doctor.finding import Finding, name_ranks
from gradwire.units import format_duration
from gradwire.wire import frame_memory

if TYPE_CHECKING:
    from gradwire.links.base import Link

TRIPS = 16
LARGEST_OFFSET_S = 0.1
_READING = struct.Struct("<q")

Clock = Callable[[], int]
"""Returns the wall clock in ns since 1970."""


@dataclass(frozen=True)
class Offset:
    """How far a peer's clock is ahead, and how far that may be wrong; in seconds."""

    offset_s: float
    uncertainty_s: float

    def __str__(self) -> str:
        sign = "+" if self.offset_s >= 0 else "-"
        return (
            f"{sign}{format_duration(abs(self.offset_s))}, give or take {format_duration(self.uncertainty_s)}"
        )


def measure_offset(link: Link, peer: int, now: Clock = time.time_ns) -> Offset:
    """Return the offset of the peer's clock; the peer calls ``tell_time``. Raises ``LinkError``."""
    readings = []
    for _ in range(TRIPS):
        receiving = link.irecv(peer, frame_memory(_READING.size))
        before = now()
        link.isend(peer, _message(0)).wait()
        (there,) = _READING.unpack(receiving.wait().numpy().tobytes())
        after = now()
        readings.append((after - before, there - (before + after) // 2))
    trip_ns, offset_ns = min(readings)
    return Offset(offset_ns / 1e9, trip_ns / 2e9)


def tell_time(link: Link, peer: int, now: Clock = time.time_ns) -> None:
    """Answer the rank that measures. Raises ``LinkError``."""
    for _ in range(TRIPS):
        link.irecv(peer, frame_memory(_READING.size)).wait()
        link.isend(peer, _message(now())).wait()


def check_clocks(offsets: Mapping[int, Offset]) -> Finding:
    """Judge the clocks of the ranks, by rank, against that of rank 0."""
    far = {rank: each for rank, each in offsets.items() if abs(each.offset_s) > LARGEST_OFFSET_S}
    if far:
        worst = max(far, key=lambda rank: abs(far[rank].offset_s))
        return Finding(
            "clocks",
            "warn",
            f"{name_ranks(far)} more than {format_duration(LARGEST_OFFSET_S)} from rank 0, rank {worst} most "
            f"({far[worst]}): logs and certificates go by the clock; start a time service such as chrony",
        )
    worst = max(offsets, key=lambda rank: abs(offsets[rank].offset_s))
    return Finding("clocks", "ok", f"furthest from rank 0: rank {worst}, {offsets[worst]}")


def _message(reading: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(_READING.pack(reading)), dtype=torch.uint8)
