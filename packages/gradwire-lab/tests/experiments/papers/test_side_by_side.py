"""Cells side by side have the same rows as one after the other, and leave no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradwire.errors import JobError
from gradwire.machine import cores
from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.reproduce import notes, reproduce
from support.processes import children
from support.project import TESTS_PATH
from support.waiting_exhibit import GO, LARGE, LOUD, measure, waiting

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    yield
    assert not children()


def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rows_have_the_same_bits_as_one_after_the_other(tmp_path: Path) -> None:
    exhibit = waiting(tmp_path, 1, 2, 3, 4, 5)
    found = perform(exhibit.experiment, exhibit.quick, quiet=True)
    pids = {path.name for path in tmp_path.iterdir()}
    assert 1 <= len(pids) <= cores()
    assert f"pid-{os.getpid()}" not in pids
    assert {row["threads"] for row in found} == {1}
    cells = exhibit.experiment.cells(exhibit.quick)
    # Rows that took a second, as on a busy machine, have the share of other programs.
    own = [{name: value for name, value in row.items() if name != "others"} for row in found]
    assert own == [{**cell, **measure(exhibit.quick, cell)} for cell in cells]


def test_a_lossy_warning_stays_with_its_cell_and_is_shown(tmp_path: Path) -> None:
    exhibit = waiting(tmp_path, 1, 2, LOUD, 4)
    (judged,) = reproduce([exhibit], tmp_path / "out", lambda _text: None)
    rows = json.loads((tmp_path / "out" / "study-table-i" / "record.json").read_text())["rows"]
    assert {row["number"]: row.get("lossy") for row in rows} == {
        1: None,
        2: None,
        LOUD: ["rank 0: fp8 loses 99.0%"],
        4: None,
    }
    assert any("rank 0: fp8 loses 99.0%" in note for note in notes(judged))


def test_cells_of_a_group_are_measured_together(tmp_path: Path) -> None:
    exhibit = waiting(tmp_path, 1, 2, 3, 4, paired=True)
    found = perform(exhibit.experiment, exhibit.quick, quiet=True)
    assert [row["with"] for row in found] == [[1, 3], [2, 4], [1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [
        (-1, JobError, r"process \d failed \(measuring number -1  remainder 1\): -1 has no root"),
        (0, RuntimeError, r"process \d failed \(measuring number 0  remainder 0\): zero"),
    ],
)
def test_a_failure_names_its_cell(tmp_path: Path, number: int, error: type[Exception], reason: str) -> None:
    exhibit = waiting(tmp_path, 1, 2, number, LARGE)
    with pytest.raises(error, match=reason):
        perform(exhibit.experiment, exhibit.quick, tmp_path / "out", quiet=True)
    record = tmp_path / "out" / "record.json"  # there is none if the failure precedes the first result
    rows = json.loads(record.read_text())["rows"] if record.exists() else []
    assert {row["number"] for row in rows} <= {1, 2}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_exhibit_goes_on_at_the_next_cell(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "support.waiting_exhibit", str(tmp_path)]
    record = tmp_path / "out" / "study-table-i" / "record.json"
    environment = {**os.environ, "PYTHONPATH": TESTS_PATH}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as program:
        until(lambda: record.exists() and len(json.loads(record.read_text())["rows"]) == 3)
        took_s = json.loads(record.read_text())["measured_s"]
        program.send_signal(number)
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert pids
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    (tmp_path / GO).touch()
    exhibit = waiting(tmp_path, 1, 2, 3, LARGE, LARGE + 1)
    said: list[str] = []
    (judged,) = reproduce([exhibit], tmp_path / "out", said.append)
    assert [claim.verdict for claim in judged.claims] == [Verdict.REPRODUCED]
    assert [line.split()[1] for line in said[:-1]] == ["4/5", "5/5"]
    found = json.loads(record.read_text())
    assert [row["number"] for row in found["rows"]] == [1, 2, 3, LARGE, LARGE + 1]
    assert found["measured_s"] > took_s > 0
    assert found["expected_s"] == 1
