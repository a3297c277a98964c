"""What a rank tells the others of itself, before any of them opens a connection to another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradwire.doctor.finding import Finding
from gradwire.errors import JobError
from gradwire.fields import Source, of, rows, text
from gradwire.plan import Plan

_SOURCE = Source("a rank's description", "install the same gradwire on all machines", JobError)


@dataclass(frozen=True)
class Card:
    """One rank: its software, its place, its findings.

    Parameters
    ----------
    gradwire, python, torch
        Versions.
    wire_version
        The version of the frames that it sends and reads.
    target
        The instruction set of its kernels.
    kernels_digest
        Of what its kernels made of the fixed vector.
    machine_id
        Equal on ranks of one machine.
    addresses
        Where Gloo would listen.
    loopback
        Whether one of them is reachable from its own machine only.
    plan
        Its plan as JSON, "" without one or where it cannot be read.
    findings
        What it found on its machine.
    """

    gradwire: str
    python: str
    torch: str
    wire_version: int
    target: str
    kernels_digest: str
    machine_id: str
    addresses: tuple[str, ...]
    loopback: bool
    plan: str
    findings: tuple[Finding, ...]

    @property
    def plan_digest(self) -> str:
        """Twelve hexadecimal digits of the plan, "" without one."""
        return hashlib.sha256(self.plan.encode()).hexdigest()[:12] if self.plan else ""

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Card:
        """Read what another rank's ``to_dict`` wrote. Raises ``JobError`` for another gradwire's card."""
        return _SOURCE.read(values, of(cls, findings=rows(of(Finding, detail=text))))


def plan_text(plan: Plan | None) -> str:
    """Return what two ranks compare: equal for equal plans, however their files are written."""
    return "" if plan is None else plan.to_json()
