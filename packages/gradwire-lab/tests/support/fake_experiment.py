"""An experiment without hosts: squares of numbers, and a run that can be cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.tables import Column, Table
from gradwire_lab.experiments import Experiment
from gradwire_lab.experiments.experiment import Cell, Report, Row


@dataclass(frozen=True)
class Options:
    """The numbers to square, and a file that the experiment would read."""

    numbers: tuple[int, ...] = (3, 1, 2)
    file: Path | None = None


@dataclass
class Squares:
    """Makes the experiment; ``measured`` notes its cells, and ``error`` comes after ``breaks_after``."""

    breaks_after: int | None = None
    error: BaseException = field(default_factory=KeyboardInterrupt)
    plot: bytes | None = None
    version: int = 1
    measured: list[int] = field(default_factory=list)
    before: list[Row] = field(default_factory=list)

    def experiment(self) -> Experiment[Options]:
        """Return it as ``perform`` wants it."""
        return Experiment(
            name="squares",
            question="what are the squares?",
            options=Options,
            cells=lambda options: [{"number": number} for number in options.numbers],
            run=self._run,
            table=lambda rows: [Table([Column("square")], [(str(row["square"]),) for row in rows])],
            plot=None if self.plot is None else lambda _rows: self.plot or b"",
            version=self.version,
        )

    def _run(self, _options: Options, cells: Sequence[Cell], before: Sequence[Row], report: Report) -> None:
        self.before = list(before)
        for done, cell in enumerate(reversed(cells)):  # the order of measuring is the experiment's own
            if done == self.breaks_after:
                raise self.error
            self.measured.append(cell["number"])
            report({**cell, "square": cell["number"] ** 2})
