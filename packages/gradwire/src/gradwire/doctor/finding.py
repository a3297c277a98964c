"""The doctor's data types: findings of checks, cards of ranks, and the diagnosis of all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from gradwire.errors import JobError
from gradwire.fields import Source, of, rows, text
from gradwire.units import format_duration

Result = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """The result of one check, as a row of the report."""

    check: str  # one to three words
    result: Result  # warn if training works but could work better, FAIL if training would fail
    detail: str  # the observation and, unless ok, the remedy


def any_failed(findings: Iterable[Finding]) -> bool:
    """Return whether any finding is ``FAIL``, so that training would fail."""
    return any(finding.result == "FAIL" for finding in findings)


def merge(by_rank: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Merge the findings of all ranks, given in rank order, into as few rows as possible.

    A problem's row names the ranks that have the problem, unless all ranks have it. A check that is ok on all
    ranks is one row with the first rank's detail, because addresses and free memory differ between ranks.
    """
    found: dict[str, dict[tuple[Result, str], list[tuple[int, Finding]]]] = {}
    for rank, findings in enumerate(by_rank):
        for each in findings:
            alike = each.result, "" if each.result == "ok" else each.detail
            found.setdefault(each.check, {}).setdefault(alike, []).append((rank, each))
    return [_as_one(alike, len(by_rank)) for results in found.values() for alike in results.values()]


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text with ranges.

    Examples
    --------
    >>> name_ranks([3, 0, 1, 2, 7]), name_ranks([5])
    ('ranks 0-3, 7', 'rank 5')
    """
    ordered, runs = sorted(ranks), []
    for _, run in groupby(enumerate(ordered), lambda each: each[1] - each[0]):
        members = [rank for _, rank in run]
        runs.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else f"{members[0]}")
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(runs)}"


def _as_one(found: Sequence[tuple[int, Finding]], world: int) -> Finding:
    """Merge findings of one check with the same result, each with its rank, into one row."""
    ranks, first = [rank for rank, _ in found], found[0][1]
    if all(each == first for _, each in found):
        who = "" if len(ranks) == world else f"{name_ranks(ranks)}: "
        return replace(first, detail=f"{who}{first.detail}")
    return replace(first, detail=f"rank {ranks[0]}: {first.detail}; {name_ranks(ranks[1:])}: also ok")


# The card that each rank publishes before the ranks connect to each other.

_SOURCE = Source("a rank's description", "install the same gradwire on all machines", JobError)


@dataclass(frozen=True)
class TcpSettings:
    """The kernel's settings of TCP on a rank's machine; 0 if unknown."""

    send_nbytes: int = 0  # the largest send buffer of a connection, from net.ipv4.tcp_wmem
    receive_nbytes: int = 0  # the largest receive buffer of a connection, from net.ipv4.tcp_rmem
    slow_start_after_idle: int = 0  # 1 if a connection probes its rate again after a pause


@dataclass(frozen=True)
class Card:
    """A rank's description of itself: its software, machine, addresses, plan, and findings."""

    gradwire: str
    python: str
    torch: str
    wire_version: int  # the version of gradwire's frames
    target: str  # the instruction set of the kernels
    kernels_digest: str  # of the fixed vector's payloads with all codecs
    machine_id: str  # equal on ranks of one machine
    addresses: tuple[str, ...]  # on which links listen; () if the addresses depend on the other ranks
    loopback: bool  # whether an address is a loopback address
    plan: str  # as JSON; "" without a readable plan
    findings: tuple[Finding, ...]
    tcp: TcpSettings = TcpSettings()

    @property
    def plan_digest(self) -> str:
        """Twelve hexadecimal digits of the plan's digest; "" without a plan."""
        return hashlib.sha256(self.plan.encode()).hexdigest()[:12] if self.plan else ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Card:
        """Return the card from another rank's fields. Raises ``JobError`` for any other format."""
        return _SOURCE.read(values, of(cls, findings=rows(of(Finding, detail=text))))


@dataclass(frozen=True)
class Offset:
    """The offset of a peer's clock in seconds, positive if the peer's clock is ahead, and its uncertainty."""

    offset_s: float
    uncertainty_s: float

    def __str__(self) -> str:
        sign, offset = "+" if self.offset_s >= 0 else "-", format_duration(abs(self.offset_s))
        return f"{sign}{offset} ± {format_duration(self.uncertainty_s)}"


@dataclass(frozen=True)
class Look:
    """A short measurement of the link between two ranks: latency, and the rate of each direction."""

    latency_s: float  # half of the median round trip of one byte
    there_nbytes_per_s: float  # from the lower to the higher rank
    back_nbytes_per_s: float  # from the higher to the lower rank

    @property
    def slower_nbytes_per_s(self) -> float:
        """The rate of the slower direction."""
        return min(self.there_nbytes_per_s, self.back_nbytes_per_s)

    @property
    def unlikeness(self) -> float:
        """The ratio of the faster direction's rate to the slower direction's rate."""
        return max(self.there_nbytes_per_s, self.back_nbytes_per_s) / self.slower_nbytes_per_s


@dataclass(frozen=True)
class DoctorOptions:
    """The options of ``gradwire doctor``: the plan, rank 0's record, the timeout, and the tests of links."""

    plan_file: Path | None = None
    json_file: Path | None = None
    timeout_s: float = 30.0
    lines: bool = True
    overwrite: bool = False


@dataclass
class Diagnosis:
    """The contents of a report. Rank 0 prints the report, and so does a rank that cannot reach rank 0."""

    findings: list[Finding] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)  # of the cards
    offsets: dict[int, Offset] = field(default_factory=dict)  # from rank 0, keyed by rank, as are the looks
    looks: dict[int, Look] = field(default_factory=dict)
