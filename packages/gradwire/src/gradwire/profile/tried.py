"""Measurements of a trial of gradwire in an unchanged script, as a file for the script's starter."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Self

from gradwire.autotune.config import DEFAULT
from gradwire.errors import JobError
from gradwire.fields import Source, of, real, rows
from gradwire.files import replace_file
from gradwire.tables import Column, Table, figure
from gradwire.timing.calibrate import disagreement
from gradwire.units import format_size

COUNTED = 30
"""Steps with the chosen plan that count."""


@dataclass(frozen=True)
class Tried:
    """Seconds of steps without gradwire, and then with the plan that it chose.

    Attributes
    ----------
    plan
        The plan, in short.
    chosen_after
        The attached steps before the first that counts.
    plain_s, attached_s
        Seconds of each step that counts, on rank 0.
    plain_nbytes, attached_nbytes
        The bytes that a rank sends in a step: by DDP's ring, and counted.
    """

    plan: str
    chosen_after: int
    plain_s: tuple[float, ...]
    attached_s: tuple[float, ...]
    plain_nbytes: float
    attached_nbytes: float

    def save(self, path: Path) -> None:
        """Write it."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the measurements that ``save`` wrote. Raises ``JobError``."""
        source = Source(f"the measurement {path}", "let 'gradwire profile' alone write it", JobError)
        return source.of_json(
            path.read_text(encoding="utf-8"), of(cls, plain_s=rows(real(0)), attached_s=rows(real(0)))
        )

    @property
    def speedup(self) -> float:
        """How many times as fast a step is with gradwire, by the medians."""
        return median(self.plain_s) / median(self.attached_s)

    @property
    def spread(self) -> float:
        """By what share the speed-up may be off: the scatter of both kinds of steps."""
        return disagreement(self.plain_s) + disagreement(self.attached_s)

    def verdict(self) -> str:
        """Return the measurements in a sentence."""
        plan = f"gradwire chose {self.plan} after {self.chosen_after} attached steps"
        if self.spread > DEFAULT.noisy_share:
            return (
                f"Steps are too noisy to say what gradwire gains: they scatter by {self.spread:.0%}, which "
                f"must be below {DEFAULT.noisy_share:.0%} ({plan}). Try again on a quiet machine, or with "
                "more --steps."
            )
        low, high = self.speedup / (1 + self.spread), self.speedup * (1 + self.spread)
        measured = f"A step was measured to be {low:.3g} to {high:.3g} times as fast with gradwire; {plan}."
        return measured if high > 1 else f"{measured} Don't attach gradwire here."

    def report(self) -> list[str | Table]:
        """Return the verdict, and a row for each kind of steps."""
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
                ("DDP as it is", self.plain_s, self.plain_nbytes),
                ("attached", self.attached_s, self.attached_nbytes),
            )
        ]
        return [self.verdict(), "", Table(columns, rows), "scatter: from the middle to the quartiles."]
