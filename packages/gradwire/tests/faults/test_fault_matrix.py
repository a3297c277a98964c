"""Every fault: no rank hangs, none has wrong weights, and each error names its reason.

The test suite runs each fault once, with one method, but leaves out most of those that strike while a plan is
chosen. ``GRADWIRE_FAULT_REPEATS`` runs each fault with every method that often, as ``make faults`` does. A
seed draws the rank, the step and the frame that the fault strikes. It is printed at the end;
``GRADWIRE_FAULT_SEED`` draws the same again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from faults.case import Case
from faults.judge import judge
from faults.methods import METHODS
from faults.rows import ROWS, Row
from faults.runs import SEED, Cell, run_matrix, undisturbed
from faults.world import play

pytestmark = [pytest.mark.processes, pytest.mark.timeout(4 * 3600)]  # every world has a limit of its own

Cells = dict[tuple[str, str], Cell]
WHOLE = "GRADWIRE_FAULT_REPEATS" in os.environ
CELLS = [
    pytest.param(row, method, id=f"{row.name}-{method}")
    for number, row in enumerate(row for row in ROWS if WHOLE or not row.is_nightly)
    for method in (METHODS if WHOLE else [list(METHODS)[number % len(METHODS)]])
]


@pytest.fixture(scope="module")
def cells(request: pytest.FixtureRequest, tmp_path_factory: Any, shown: list[Cell]) -> Cells:
    """All cells that were chosen, run several at a time."""
    chosen: list[tuple[Any, Any]] = [
        (item.callspec.params["row"], item.callspec.params["method"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_no_hang_and_no_wrong_weight
    ]
    shown.extend(run_matrix(chosen, tmp_path_factory.mktemp("faults")))
    return {(cell.row.name, cell.method): cell for cell in shown}


@pytest.mark.parametrize(("row", "method"), CELLS)
def test_no_hang_and_no_wrong_weight(row: Row, method: str, cells: Cells) -> None:
    assert cells[row.name, method].problems == []


@pytest.mark.parametrize("name", ["killed between steps", "stopped between steps"])
def test_a_rank_that_is_lost_before_ddp_broadcasts_its_new_buckets(name: str, tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    outcome = play(Case("ddp", row, SEED, victim=2, step=1), tmp_path / "lost")
    assert judge(outcome, undisturbed("ddp", tmp_path)).problems == []
    for rank in (0, 1):
        assert "in the named barrier before step 2" in outcome.reports[rank].text
