"""The options and the outcome of an examination by the doctor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.doctor.finding import Card, Finding

if TYPE_CHECKING:  # which need torch
    from gradwire.doctor.network import Look
    from gradwire.doctor.software import Offset


@dataclass(frozen=True)
class DoctorOptions:
    """Options of an examination: a plan to try, rank 0's record, the timeout, and a measurement of lines."""

    plan_file: Path | None = None
    json_file: Path | None = None
    timeout_s: float = 30.0
    lines: bool = True
    overwrite: bool = False


@dataclass
class Diagnosis:
    """What rank 0 knows at the end.

    ``ranks`` are those that gave ``cards``; ``offsets`` and ``looks`` are by the rank that was examined.
    """

    findings: list[Finding] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    offsets: dict[int, Offset] = field(default_factory=dict)
    looks: dict[int, Look] = field(default_factory=dict)
