"""Which runs make a matrix, several worlds at a time, and what came of each of its cells."""

from __future__ import annotations

import os
import secrets
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from faults.case import Case
from faults.choices import check_choices
from faults.judge import Reference, Verdict, check_reference, judge
from faults.rows import Row
from faults.world import play

REPEATS = int(os.environ.get("GRADWIRE_FAULT_REPEATS", "1"))
NEW_REPEATS = int(os.environ.get("GRADWIRE_FAULT_NEW_REPEATS", REPEATS))
"""Of the rows that are new."""
SEED = os.environ.get("GRADWIRE_FAULT_SEED") or secrets.token_hex(4)
_WORLDS = int(os.environ.get("GRADWIRE_FAULT_WORLDS", "2" if "PYTEST_XDIST_WORKER" in os.environ else "3"))
"""How many worlds run at once: most of them wait for a timeout most of the time, but not alone."""


@dataclass
class Cell:
    """One fault and one method."""

    row: Row
    method: str
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def hangs(self) -> int:
        """How many ranks hung, over all runs."""
        return sum(verdict.hangs for verdict in self.verdicts)

    @property
    def wrong(self) -> int:
        """How many ranks had weights or optimizer states that no undisturbed run has."""
        return sum(verdict.wrong for verdict in self.verdicts)

    @property
    def kept(self) -> int:
        """How many ranks had a model that was kept alive."""
        return sum(verdict.kept for verdict in self.verdicts)

    @property
    def problems(self) -> list[str]:
        """What is wrong, with the seed of the run."""
        return [
            f"run {SEED}/{number}: {problem}"
            for number, verdict in enumerate(self.verdicts)
            for problem in verdict.problems
        ]

    @property
    def median_s(self) -> float | None:
        """The median of the seconds until a rank's error; None where none is expected."""
        seconds = [each for verdict in self.verdicts for each in verdict.seconds]
        return statistics.median(seconds) if seconds else None


_references: dict[tuple[str, str], Reference] = {}


def undisturbed(method: str, folder: Path, plan: str = "") -> Reference:
    """Return the histories of a run without a fault; ``AssertionError`` if it can be no reference."""
    if (method, plan) not in _references:
        _references[method, plan] = _run_undisturbed(method, folder, plan)
    return _references[method, plan]


def _run_undisturbed(method: str, folder: Path, plan: str) -> Reference:
    case = Case(method, None, SEED, plan=plan)
    outcome = play(case, folder / f"{method} undisturbed {plan}".strip())
    problems = [f"rank {rank} hangs" for rank in outcome.hung]
    problems += [f"rank {rank} was aborted" for rank in outcome.aborted]
    problems += [each.text for each in outcome.reports.values() if each.error is not None]
    histories = {rank: report.history for rank, report in outcome.reports.items()}
    problems += check_reference(method, histories, case.steps)
    problems += [] if plan != "auto" else check_choices([each.chosen for each in outcome.reports.values()])
    assert not problems, f"without any fault, {method}: {problems}"
    return histories


def run_matrix(wanted: Sequence[tuple[Row, str]], folder: Path) -> list[Cell]:
    """Run every cell ``REPEATS`` times, or ``NEW_REPEATS``; ``SEED`` draws ranks, steps and moments."""
    kinds = list(dict.fromkeys((method, row.plan) for row, method in wanted))
    cells = [Cell(row, method) for row, method in wanted]

    def once(cell: Cell, number: int) -> Verdict:
        case = Case.drawn(cell.method, cell.row, f"{SEED}/{number}")
        outcome = play(case, folder / f"{cell.method} {cell.row.name} {number}")
        return judge(outcome, undisturbed(cell.method, folder, cell.row.plan))

    def repeats(cell: Cell) -> range:
        return range(NEW_REPEATS if cell.row.is_new else REPEATS)

    with ThreadPoolExecutor(_WORLDS) as pool:
        list(pool.map(lambda kind: undisturbed(kind[0], folder, kind[1]), kinds))
        runs = [[pool.submit(once, cell, number) for number in repeats(cell)] for cell in cells]
        for cell, verdicts in zip(cells, runs, strict=True):
            cell.verdicts = [verdict.result() for verdict in verdicts]
    return cells


def table(cells: Sequence[Cell]) -> str:
    """Return the matrix in Markdown, a line per cell."""
    lines = [
        "| fault | method | runs | hangs | wrong weights | models kept alive | median s until the error |"
    ]
    lines += ["|---|---|---:|---:|---:|---:|---:|"]
    for cell in cells:
        seconds = "no error" if cell.median_s is None else f"{cell.median_s:.2f}"
        counts = f"{len(cell.verdicts)} | {cell.hangs} | {cell.wrong} | {cell.kept}"
        lines.append(f"| {cell.row.name} | {cell.method} | {counts} | {seconds} |")
    sums = [sum(len(each.verdicts) for each in cells)]
    sums += [sum(getattr(each, name) for each in cells) for name in ("hangs", "wrong", "kept")]
    lines.append(f"| all of them | | {' | '.join(map(str, sums))} | |")
    return "\n".join(lines)
