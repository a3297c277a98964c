"""The cluster on which a plan will run: the line and the hosts, as measured or as given."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gradwire.errors import SpecError
from gradwire.machine import cores, is_inside
from gradwire.planner.calibration import measure_host
from gradwire.timing.line import HostCost, Line, LineRate
from gradwire.units import format_duration, format_rate, parse_duration, parse_rate

# The inputs that a choice is based on, with their sources.


@dataclass(frozen=True)
class Input:
    """An input of the choice, and its source: measured, given, or assumed."""

    name: str
    value: str
    source: str


ASSUMED_LATENCY_S = 50e-6
"""The latency if only the rate of a line is given: that of a small message on ordinary Ethernet."""


@dataclass(frozen=True)
class Cluster:
    """The network and the hosts; ``planner.choose_plan`` describes the parameters.

    Without ``host``, the cost of frames is the one measured with the line, or measured on this machine.
    """

    hosts: int
    line: Line | LineRate | str | os.PathLike[str] | None = None
    elsewhere: bool = False
    rate: str | float | None = None
    latency: str | float | None = None
    group_size: int | None = None
    core_rate: str | float | None = None
    host: HostCost | None = None
    shared_machine: bool | None = None

    def __post_init__(self) -> None:
        if type(self.hosts) is not int or self.hosts < 1:
            raise SpecError(f"a plan is for a whole number of hosts from 2 up, but this is {self.hosts!r}")
        if self.hosts == 1:
            raise SpecError("1 host has nothing to exchange, so there is nothing to plan; ask for 2 or more")
        if self.group_size is not None and self.hosts == 2:
            raise SpecError("2 hosts make no groups, of which the smallest has 2 of 3 hosts; leave them out")
        if self.group_size is not None and (
            type(self.group_size) is not int or not 1 < self.group_size < self.hosts
        ):
            raise SpecError(
                f"groups have from 2 hosts up to {self.hosts - 1}, one fewer than there are, but these have "
                f"{self.group_size!r}"
            )
        if (self.group_size is None) != (self.core_rate is None):
            raise SpecError("groups need both, how many hosts there are in each and the rate between them")
        if self.host is not None and not isinstance(self.host, HostCost):
            raise SpecError(f"host must be a HostCost, or None to measure it, but is {self.host!r}")
        core = self.core_nbytes_per_s
        if not (isinstance(core, (int, float)) and core > 0):
            raise SpecError(f"core_rate must be a rate above 0, such as '10gbit', but is {core!r}")

    @property
    def is_shared(self) -> bool:
        """Whether all hosts are this machine."""
        return is_inside() if self.shared_machine is None else self.shared_machine

    @property
    def threads(self) -> int:
        """The number of threads of one rank."""
        return max(1, cores() // self.hosts) if self.is_shared else cores()

    @property
    def groups(self) -> tuple[int, ...]:
        """The sizes of the groups; empty for a flat network."""
        if self.group_size is None:
            return ()
        whole, rest = divmod(self.hosts, self.group_size)
        return (self.group_size,) * whole + ((rest,) if rest else ())

    @property
    def core_nbytes_per_s(self) -> float:
        """The rate between groups."""
        return math.inf if self.core_rate is None else _rate(self.core_rate)

    @cached_property
    def _given(self) -> tuple[Line | LineRate, str]:
        """The given line, read once, and its source."""
        line = self.line
        if isinstance(line, Line):
            return line, "told"
        if isinstance(line, LineRate):
            return line, "measured"
        if not isinstance(line, (str, os.PathLike)):
            raise SpecError(f"line must be a Line, a LineRate or the file of one, but is {line!r}")
        rate = LineRate.load(Path(line), elsewhere=self.elsewhere)
        return rate, f"measured{' elsewhere' if self.elsewhere else ''}, {line}"

    def find_line(self) -> tuple[Line, list[Input]]:
        """Return the line and its source. Raises ``SpecError``."""
        told = self.rate is not None or self.latency is not None
        if self.line is not None:
            if told:
                raise SpecError("the line is either measured or told; leave out the one or the other")
            measured, source = self._given
            line = measured.line if isinstance(measured, LineRate) else measured
            return line, [Input("line", str(line), source)]
        if self.rate is None:
            raise SpecError(
                "a plan needs to know the line: measure it with 'gradwire line-rate --json FILE' and "
                "give the file, or tell rate and latency"
            )
        latency_s = ASSUMED_LATENCY_S if self.latency is None else _latency(self.latency)
        line = Line(latency_s, _rate(self.rate))
        return line, [
            Input("rate", format_rate(line.nbytes_per_s), "told"),
            Input("latency", format_duration(latency_s), "assumed" if self.latency is None else "told"),
        ]

    def find_host(self) -> tuple[HostCost, list[Input]]:
        """Return the cost of frames: as given, as measured with the line, or measured here.

        Raises ``LinkError``.
        """
        found, source = self.host, "told"
        if found is None and self.line is not None:
            measured, source = self._given
            found = measured.host if isinstance(measured, LineRate) else None
        if found is None:
            found, source = measure_host(cores(), 1), "measured here"
        found = replace(found, ranks_per_machine=self.hosts if self.is_shared else 1)
        frame_s = found.send_s + found.receive_s
        where = (
            f"all {self.hosts} hosts share {found.cores} cores"
            if self.is_shared
            else (f"{found.cores} cores each")
        )
        return found, [
            Input("frames", f"{format_duration(frame_s)} each, both ends together", source),
            Input(
                "hosts", f"{self.hosts}, {where}", "told" if self.shared_machine is not None else "assumed"
            ),
        ]


def _rate(rate: str | float) -> float:
    found = parse_rate(rate) if isinstance(rate, str) else rate
    return math.inf if found is None else found


def _latency(latency: str | float) -> float:
    return parse_duration(latency) if isinstance(latency, str) else latency
