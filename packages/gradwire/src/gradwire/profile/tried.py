"""The measured steps of a trial of gradwire in an unchanged script, and their file for the profiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any, ClassVar

from gradwire.autotune.settings import DEFAULT
from gradwire.fields import real, rows
from gradwire.script.entry import ScriptResult
from gradwire.tables import Column, Table, figure
from gradwire.timing.calibrate import disagreement
from gradwire.units import format_size

COUNTED = 30
"""The number of measured steps with the chosen plan."""


@dataclass(frozen=True)
class Tried(ScriptResult):
    """The step times and bytes of a script without gradwire, and with the plan that gradwire chose."""

    COMMAND: ClassVar[str] = "profile"
    WHAT: ClassVar[str] = "measurement"
    KINDS: ClassVar[Mapping[str, Any]] = MappingProxyType(
        dict.fromkeys(("plain_s", "attached_s"), rows(real(0)))
    )
    plan: str  # a short name
    chosen_after: int  # the number of attached steps before the first measured step
    plain_s: tuple[float, ...]  # the seconds of each measured step, on rank 0
    attached_s: tuple[float, ...]
    plain_nbytes: float  # that a rank sends in a step: computed for DDP's ring
    attached_nbytes: float  # measured

    @property
    def speedup(self) -> float:
        """The median step time without gradwire over the median step time with gradwire."""
        return median(self.plain_s) / median(self.attached_s)

    @property
    def spread(self) -> float:
        """The relative uncertainty of the speed-up, the sum of the scatter of both kinds of steps."""
        return disagreement(self.plain_s) + disagreement(self.attached_s)

    def verdict(self) -> str:
        """Return the measured gain, or the reason why it can't be measured, as sentences."""
        plan = f"gradwire chose {self.plan} after {self.chosen_after} attached steps"
        if self.spread > DEFAULT.noisy_share:
            return (
                f"Steps are too noisy to measure the gain: they scatter by {self.spread:.0%}, expected at "
                f"most {DEFAULT.noisy_share:.0%} ({plan}). Repeat on an idle machine, or with more --steps."
            )
        low, high = self.speedup / (1 + self.spread), self.speedup * (1 + self.spread)
        measured = f"A step was measured to be {low:.3g} to {high:.3g} times as fast with gradwire; {plan}."
        return measured if high > 1 else f"{measured} Don't attach gradwire on this network."

    def report(self) -> list[str | Table]:
        """Return the verdict, and a table with a row for steps without and with gradwire."""
        columns = (
            Column.of_text("steps"),
            Column("counted"),
            Column("median", "ms"),
            Column("scatter"),
            Column("sent by a rank"),
        )
        rows = []
        for name, steps_s, nbytes in (
            ("plain DDP", self.plain_s, self.plain_nbytes),
            ("attached", self.attached_s, self.attached_nbytes),
        ):
            median_ms, scatter = figure(1e3 * median(steps_s)), f"{disagreement(steps_s):.1%}"
            rows.append((name, str(len(steps_s)), median_ms, scatter, format_size(nbytes)))
        legend = "scatter: half the distance between the quartiles, over their midpoint."
        return [self.verdict(), "", Table(columns, rows), legend]
