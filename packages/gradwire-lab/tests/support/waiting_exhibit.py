"""An exhibit whose cells are measured side by side: squares, some of which wait for a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradwire.errors import DataError
from gradwire.line_rate.display import print_line
from gradwire_lab.experiments.claim import Claim, at_least, only
from gradwire_lab.experiments.experiment import Cell, Row, pass_on
from gradwire_lab.experiments.papers.exhibit import exhibit, groups_side_by_side, side_by_side
from gradwire_lab.experiments.papers.reproduce import reproduce

GO = "go"
"""The file in ``folder`` for which large numbers wait."""
LARGE = 10
LOUD = 7
"""The number whose cell comes with a lossy warning."""


@dataclass(frozen=True)
class Options:
    """The numbers, and the folder in which each process leaves its id."""

    numbers: tuple[int, ...]
    folder: Path


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Return a square, and what random numbers and sums of the process are like."""
    (options.folder / f"pid-{os.getpid()}").touch()
    number = cell["number"]
    while number >= LARGE and not (options.folder / GO).exists():
        time.sleep(0.01)
    if number == LOUD:
        pass_on("rank 0: fp8 loses 99.0%")
    if number < 0:
        raise DataError(f"{number} has no root")
    if number == 0:
        raise ZeroDivisionError("zero")
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(number))
    return {"square": number**2, "sum": float((values @ values) ** 0.5), "threads": torch.get_num_threads()}


def measure_pair(options: Options, cells: Sequence[Cell]) -> list[Row]:
    """Return the rows of numbers with one remainder."""
    return [{**cell, "with": [each["number"] for each in cells], **measure(options, cell)} for cell in cells]


def cells(options: Options) -> list[Cell]:
    """Return a cell for each number."""
    return [{"number": number, "remainder": number % 2} for number in options.numbers]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Claim that the largest square is at least 1."""
    return [Claim("largest", only(max(row["square"] for row in rows)), at_least(1), unit="")]


def waiting(folder: Path, *numbers: int, paired: bool = False) -> Any:
    """Return the exhibit."""
    return exhibit(
        "study",
        "table I",
        "what are the squares?",
        cells=cells,
        run=groups_side_by_side(measure_pair, ("remainder",)) if paired else side_by_side(measure),
        claims=claims,
        quick=Options(numbers, folder),
        full=Options(numbers, folder),
        scaling="none.",
        seconds=(1, 2),
    )


if __name__ == "__main__":
    # Imported again by its name, so that processes that are started find the functions.
    from support import waiting_exhibit

    place = Path(sys.argv[1])
    made = waiting_exhibit.waiting(place, 1, 2, 3, LARGE, LARGE + 1)
    reproduce([made], place / "out", print_line)
