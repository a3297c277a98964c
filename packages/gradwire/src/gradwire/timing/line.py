"""The line: one direction of a host's network, as measured or as given.

A message of ``n`` bytes takes ``latency + max(0, n - burst) / rate``: the alpha-beta model of the measurement
study (section on the methodology: the time of a 1-byte message is the latency, the plateau over message sizes
is the bandwidth), with the burst that a rate limiter lets through at once after a pause.
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

# What a frame costs a host beside the codec; ``calibrate`` measures it.

_HOST = Source("a host's costs", "measure them with 'gradwire line-rate'")
FRAMES, SMALL_NBYTES, LARGE_NBYTES = 8, SEGMENT_UNIT_NBYTES, 1 << 20
"""The frames of a measurement, and the sizes of small and large ones, which separate frame and byte."""


@dataclass(frozen=True)
class HostCost:
    """A host's cost of a frame beside the codec, and the number of its cores.

    The rank's own thread spends ``send_s`` or ``receive_s`` on every frame and ``send_s_per_nbyte`` or
    ``receive_s_per_nbyte`` on every byte of it; the threads of the transport spend ``beside_s_per_nbyte`` on
    either side meanwhile. All are seconds of a core. ``cores`` is how many cores one machine has,
    ``ranks_per_machine`` how many ranks share them (all hosts of a testbed share one machine).
    ``disagreement`` is that of the repeats of the measurement; 0 where it is not known. Raises ``SpecError``
    for a number that no host has.
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
    """Processor seconds for one frame: of the rank's own thread, and of the transport's beside it."""

    thread_s: float = 0.0
    beside_s: float = 0.0


@dataclass(frozen=True)
class EndCost:
    """The cost of frames at one end of a link, sending or receiving: seconds a frame, and a byte of it."""

    frame_s: float
    s_per_nbyte: float
    beside_s_per_nbyte: float

    @classmethod
    def fit(cls, small: FrameCost, large: FrameCost, codec_s_per_nbyte: float) -> EndCost:
        """Return the costs of frames that were measured at ``SMALL_NBYTES`` and ``LARGE_NBYTES``.

        The codec's part in the thread's time is known, and is not the frame's.
        """
        span = LARGE_NBYTES - SMALL_NBYTES
        per_nbyte = max(0.0, (large.thread_s - small.thread_s) / span - codec_s_per_nbyte)
        return cls(
            max(0.0, small.thread_s - per_nbyte * SMALL_NBYTES),
            per_nbyte,
            max(0.0, (large.beside_s - small.beside_s) / span),
        )


def both_ends(sender: EndCost, receiver: EndCost, cores: int, ranks_per_machine: int = 1) -> HostCost:
    """Return the costs of a host, which sends and receives."""
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
_LINE = Source("a line", "measure it with 'gradwire line-rate'")

_BURST_SHOWS_NBYTES = (1 << 19, 1 << 22)
"""Messages of these sizes tell a burst of some 100 kB from the noise of their own duration."""


@dataclass(frozen=True)
class Line:
    """One direction between two hosts. Raises ``SpecError`` for a number that no line has.

    Parameters
    ----------
    latency_s
        Alpha: seconds from sending to receiving the smallest message, software on both sides included.
    nbytes_per_s
        1 / beta: bytes per second on the plateau; ``math.inf`` for a line that costs nothing.
    burst_nbytes
        Bytes that pass at once after a pause.
    duplex_share
        The share of the rate that each direction keeps while the other is busy, too: acknowledgements take
        some of it, and on one machine the processor.
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
        """Seconds per byte on the plateau."""
        return 1.0 / self.nbytes_per_s

    def time_s(self, nbytes: float) -> float:
        """Return the seconds that one message takes after a pause."""
        return self.latency_s + max(0.0, nbytes - self.burst_nbytes) / self.nbytes_per_s

    def __str__(self) -> str:
        return f"{format_rate(self.nbytes_per_s)}, {format_duration(self.latency_s)}"


@dataclass(frozen=True)
class Point:
    """The measurement with messages of one size, by its medians.

    ``time_s`` is half of a round trip after a pause, ``nbytes_per_s`` a stream in one direction,
    ``duplex_nbytes_per_s`` each direction of two streams at once.
    """

    nbytes: int
    time_s: float
    nbytes_per_s: float
    duplex_nbytes_per_s: float

    def __post_init__(self) -> None:
        _LINE.check(self, **dict.fromkeys([each.name for each in fields(self)], real(ABOVE_ZERO)))


@dataclass(frozen=True)
class LineRate:
    """A measured line: the points, what they come to, where they were taken, and what frames cost there.

    ``host`` is None in a record that does not know what frames cost.
    """

    line: Line
    points: tuple[Point, ...]
    machine: Mapping[str, Any]
    machine_id: str
    host: HostCost | None = None

    @classmethod
    def of(cls, points: Sequence[Point], host: HostCost | None = None) -> LineRate:
        """Return the record of what was measured on this machine."""
        machine = describe_machine(target=target())
        return cls(fit(points), tuple(points), machine, machine_id(), host)

    def to_json(self) -> str:
        """Return the record as readable JSON."""
        return to_json(make_record(SCHEMA, to_values(self)))

    @classmethod
    def load(cls, path: Path, *, elsewhere: bool = False) -> LineRate:
        """Read what ``to_json`` wrote.

        Raises ``SpecError`` for a file that is missing or no such record, and for one of another machine
        unless ``elsewhere`` says that this is meant.
        """
        remedy = "'gradwire line-rate --json FILE' writes one"
        found = read_record(path, SCHEMA, "line rate", remedy)
        own = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        source = Source(f"the line rate {path}", "it is damaged, so measure it again")
        rate = source.read(own, of(cls, line=of(Line, nbytes_per_s=number)))
        if rate.machine_id != machine_id() and not elsewhere:
            processor, cores = rate.machine.get("processor", "unknown"), rate.machine.get("cores", "?")
            raise SpecError(
                f"the line rate {path} was measured on another machine ({processor}, {cores} cores); measure "
                "here with 'gradwire line-rate', or say --elsewhere if the plan is for that machine"
            )
        return rate


def fit(points: Sequence[Point]) -> Line:
    """Return the line that measured points come to. Raises ``SpecError`` without any point.

    The latency is the time of the smallest message, and the burst what the middle sizes were faster than the
    rate. The rate, and what both directions at once leave of it, are the most that two of the sizes within a
    factor of 16 of the largest have reached: nothing makes a line faster than it is, but other work makes it
    slower, and so does TCP where a stream ends before its windows have opened.
    """
    if not points:
        raise SpecError("expected at least one measured message size for a line rate, got none")
    ordered = sorted(points, key=lambda point: point.nbytes)
    latency_s = ordered[0].time_s
    largest = ordered[-1].nbytes
    large = [point for point in ordered if 16 * point.nbytes >= largest]
    rate = _second(point.nbytes_per_s for point in large)
    duplex_share = min(1.0, _second(point.duplex_nbytes_per_s for point in large) / rate)
    low, high = _BURST_SHOWS_NBYTES
    early = [
        point.nbytes - (point.time_s - latency_s) * rate for point in ordered if low <= point.nbytes <= high
    ]
    burst_nbytes = max(0.0, statistics.median(early)) if early else 0.0
    return Line(latency_s, rate, burst_nbytes, duplex_share)


def _second(rates: Iterable[float]) -> float:
    """Return the largest rate but one; the only one where there is one."""
    return sorted(rates)[-2:][0]
