"""A world of one rank, for the programs of experiments' hosts: it keeps its rows."""

from __future__ import annotations

from typing import Any

from gradwire_lab.experiments.experiment import Cell


class Alone:
    """A world of one rank that keeps its rows."""

    rank, world = 0, 1

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def gather(self, value: object) -> list[object]:
        return [value]

    def report(self, cell: Cell, figures: Cell) -> None:
        self.rows.append({**cell, **figures})
