"""The measured steps of a trial of gradwire in an unchanged script, and their file for the profiler."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gradwire.autotune.settings import DEFAULT
from gradwire.errors import JobError
from gradwire.fields import Source, of, real, rows
from gradwire.files import replace_file
from gradwire.tables import Column, Table, figure
from gradwire.timing.calibrate import disagreement
from gradwire.units import format_size

if TYPE_CHECKING:
    from typing_extensions import Self

COUNTED = 30
"""The number of measured steps with the chosen plan."""


@dataclass(frozen=True)
class Tried:
    """The step times and bytes of a script without gradwire, and with the plan that gradwire chose.

    Attributes
    ----------
    plan
        A short name of the plan.
    chosen_after
        The number of attached steps before the first measured step.
    plain_s, attached_s
        The seconds of each measured step, on rank 0.
    plain_nbytes, attached_nbytes
        The bytes that a rank sends in a step: computed for DDP's ring, and measured with gradwire.
    """

    plan: str
    chosen_after: int
    plain_s: tuple[float, ...]
    attached_s: tuple[float, ...]
    plain_nbytes: float
    attached_nbytes: float

    def save(self, path: Path) -> None:
        """Write the measurement atomically."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the measurement in a file written by ``save``. Raises ``JobError`` if it is invalid."""
        remedy = "run 'gradwire profile' again"
        source = Source(f"the measurement {path}", remedy, JobError)
        return source.of_json(
            path.read_text(encoding="utf-8"), of(cls, plain_s=rows(real(0)), attached_s=rows(real(0)))
        )

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
        rows = [
            (
                name,
                str(len(each)),
                figure(1e3 * median(each)),
                f"{disagreement(each):.1%}",
                format_size(nbytes),
            )
            for name, each, nbytes in (
                ("plain DDP", self.plain_s, self.plain_nbytes),
                ("attached", self.attached_s, self.attached_nbytes),
            )
        ]
        legend = "scatter: half the distance between the quartiles, over their midpoint."
        return [self.verdict(), "", Table(columns, rows), legend]
