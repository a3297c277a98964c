"""The cost model of a link: one direction of a host's network, measured or given.

A message of ``n`` bytes takes ``latency + max(0, n - burst) / rate``. This is the alpha-beta model of the
measurement study (Iandola and others), with the burst that a rate limiter passes without delay on an idle
link. As in the study's section on the methodology, the latency is the time of a 1-byte message, and the
bandwidth is the plateau over message sizes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gradwire._native import target
from gradwire.errors import SpecError
from gradwire.fields import ABOVE_ZERO, Source, anything, number, of, real, to_values, whole
from gradwire.machine import describe_machine, machine_id
from gradwire.plan import SEGMENT_UNIT_NBYTES
from gradwire.records import make_record, read_record, to_json
from gradwire.units import format_duration, format_rate

_HOST = Source("a host's costs", "measure the costs with 'gradwire line-rate'")
FRAMES, SMALL_NBYTES, LARGE_NBYTES = 8, SEGMENT_UNIT_NBYTES, 1 << 20
"""The number of frames in a measurement, and their two sizes, which separate costs per frame and per byte."""


@dataclass(frozen=True)
class HostCost:
    """The cost of a frame on a host in CPU seconds, without the codec's cost, and the host's cores.

    The rank's thread spends time on every frame and on every byte. Concurrently, the transport's threads
    spend ``beside_s_per_nbyte`` at either end. ``ranks_per_machine`` ranks share the ``cores`` of a machine
    (all hosts of a testbed share one machine). ``disagreement`` is the scatter of the measurements.
    """

    send_s: float = 0.0
    receive_s: float = 0.0
    send_s_per_nbyte: float = 0.0
    receive_s_per_nbyte: float = 0.0
    beside_s_per_nbyte: float = 0.0
    cores: int = 1 << 16
    ranks_per_machine: int = 1
    disagreement: float = 0.0

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("cores", "ranks_per_machine"), whole(1))
        _HOST.check(self, **dict.fromkeys([each.name for each in fields(self)], real(0.0)) | counts)


@dataclass(frozen=True)
class FrameCost:
    """The CPU seconds of one frame in the rank's thread, and in the transport's threads."""

    thread_s: float = 0.0
    beside_s: float = 0.0


@dataclass(frozen=True)
class EndCost:
    """The cost of frames at one end of a link, sending or receiving: seconds per frame, and per byte."""

    frame_s: float
    s_per_nbyte: float
    beside_s_per_nbyte: float

    @classmethod
    def fit(cls, small: FrameCost, large: FrameCost, codec_s_per_nbyte: float) -> EndCost:
        """Return the costs, given those of frames of ``SMALL_NBYTES`` and of ``LARGE_NBYTES``.

        ``codec_s_per_nbyte``, the codec's part of the thread's time, is subtracted.
        """
        span = LARGE_NBYTES - SMALL_NBYTES
        per_nbyte = max(0.0, (large.thread_s - small.thread_s) / span - codec_s_per_nbyte)
        return cls(
            max(0.0, small.thread_s - per_nbyte * SMALL_NBYTES),
            per_nbyte,
            max(0.0, (large.beside_s - small.beside_s) / span),
        )


def both_ends(sender: EndCost, receiver: EndCost, cores: int, ranks_per_machine: int = 1) -> HostCost:
    """Combine the costs of the sending end and of the receiving end into a host's costs."""
    return HostCost(
        sender.frame_s,
        receiver.frame_s,
        sender.s_per_nbyte,
        receiver.s_per_nbyte,
        (sender.beside_s_per_nbyte + receiver.beside_s_per_nbyte) / 2,
        cores,
        ranks_per_machine,
    )


SCHEMA = "gradwire.line-rate/1"
_LINE = Source("a link", "measure the link with 'gradwire line-rate'")

DISTANT_S = 2e-3
"""The round-trip time from which hosts count as distant: TCP's window may not open before a stream ends."""
BURST_SHOWS_NBYTES = (1 << 19, 1 << 22)
"""The message sizes between which a burst of about 100 kB stands out from timing noise."""


@dataclass(frozen=True)
class Line:
    """One direction of a link between two hosts. Raises ``SpecError`` if a number is invalid.

    Parameters
    ----------
    latency_s
        Alpha: the seconds from sending to receiving the smallest message, including software on both sides.
    nbytes_per_s
        1 / beta: bytes per second on the plateau; ``math.inf`` for an infinitely fast link.
    burst_nbytes
        The number of bytes that an idle link passes without delay.
    duplex_share
        The share of the rate that each direction reaches while the other direction is also busy. It may be
        below 1, because acknowledgements use part of the rate, and ranks on one machine share the CPU.
    """

    latency_s: float
    nbytes_per_s: float
    burst_nbytes: float = 0.0
    duplex_share: float = 1.0

    def __post_init__(self) -> None:
        rate = anything if self.nbytes_per_s == math.inf else real(ABOVE_ZERO)
        _LINE.check(self, latency_s=real(0.0), nbytes_per_s=rate, burst_nbytes=real(0.0))
        _LINE.check(self, duplex_share=real(ABOVE_ZERO, 1.0))

    @property
    def beta_s_per_nbyte(self) -> float:
        """The seconds per byte on the plateau."""
        return 1.0 / self.nbytes_per_s

    def time_s(self, nbytes: float) -> float:
        """Return the seconds that one message takes on an idle link."""
        return self.latency_s + max(0.0, nbytes - self.burst_nbytes) / self.nbytes_per_s

    def __str__(self) -> str:
        return f"{format_rate(self.nbytes_per_s)}, {format_duration(self.latency_s)}"


@dataclass(frozen=True)
class Point:
    """The medians of the measurements with messages of one size."""

    nbytes: int
    time_s: float  # half of a round trip on an idle link
    nbytes_per_s: float  # of a stream in one direction
    duplex_nbytes_per_s: float  # of each of two concurrent streams in opposite directions

    def __post_init__(self) -> None:
        _LINE.check(self, **dict.fromkeys([each.name for each in fields(self)], real(ABOVE_ZERO)))


@dataclass(frozen=True)
class LineRate:
    """A measured link: its points, the fitted ``line``, the machine, and the cost of frames, if measured."""

    line: Line
    points: tuple[Point, ...]
    machine: Mapping[str, Any]
    machine_id: str
    host: HostCost | None = None

    @classmethod
    def of(cls, points: Sequence[Point], host: HostCost | None = None) -> LineRate:
        """Return the link that these points show, measured on this machine."""
        machine = describe_machine(target=target())
        return cls(fit(points), tuple(points), machine, machine_id(), host)

    def to_json(self) -> str:
        """Return the record as indented JSON."""
        return to_json(make_record(SCHEMA, to_values(self)))

    @classmethod
    def load(cls, path: Path, *, elsewhere: bool = False) -> LineRate:
        """Return the record in a file with the output of ``to_json``.

        Raises ``SpecError`` if the file is missing, isn't such a record, or is from another machine and
        ``elsewhere`` is False.
        """
        remedy = "write one with 'gradwire line-rate --json FILE'"
        found = read_record(path, SCHEMA, "line rate", remedy)
        own = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        source = Source(f"the line rate {path}", "measure the link again")
        rate = source.read(own, of(cls, line=of(Line, nbytes_per_s=number)))
        if rate.machine_id != machine_id() and not elsewhere:
            processor, cores = rate.machine.get("processor", "unknown"), rate.machine.get("cores", "?")
            raise SpecError(
                f"the line rate {path} was measured on another machine ({processor}, {cores} cores); "
                "measure this machine with 'gradwire line-rate', or pass --elsewhere if the plan is for "
                "that machine"
            )
        return rate


def fit(points: Sequence[Point]) -> Line:
    """Return the line fitted to measured points. Raises ``SpecError`` if there are no points.

    The latency is the time of the smallest message. The burst is the median, over the middle sizes, of the
    bytes that arrived earlier than the rate allows. The rates are the second highest among sizes of at least
    a sixteenth of the largest: other load, or a TCP window that wasn't open yet, only slows a measurement.
    """
    if not points:
        raise SpecError(
            "expected at least one measured message size for a line rate, got none; measure at least one size"
        )
    ordered = sorted(points, key=lambda point: point.nbytes)
    latency_s = ordered[0].time_s
    largest = ordered[-1].nbytes
    large = [point for point in ordered if 16 * point.nbytes >= largest]
    rate = _second(point.nbytes_per_s for point in large)
    duplex_share = min(1.0, _second(point.duplex_nbytes_per_s for point in large) / rate)
    low, high = BURST_SHOWS_NBYTES
    early = [
        point.nbytes - (point.time_s - latency_s) * rate for point in ordered if low <= point.nbytes <= high
    ]
    burst_nbytes = max(0.0, statistics.median(early)) if early else 0.0
    return Line(latency_s, rate, burst_nbytes, duplex_share)


def _second(rates: Iterable[float]) -> float:
    """Return the second largest rate, or the only rate."""
    return sorted(rates)[-2:][0]
