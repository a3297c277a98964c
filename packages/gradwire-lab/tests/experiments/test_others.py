"""A row says what other programs took of the cores while it was measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire_lab.experiments import perform, record
from gradwire_lab.experiments.experiment import Cell, Reporter, Row
from gradwire_lab.experiments.record import OTHERS, OtherPrograms, others_in_words, others_s
from support.fake_experiment import Options, Squares

TICKS = os.sysconf("SC_CLK_TCK")
SPIN = "import time\nuntil = time.process_time() + {}\nwhile time.process_time() < until: pass"


def processes(folder: Path, ticks: dict[int, tuple[int, int]], stolen: int = 0) -> Path:
    """Write a ``/proc`` with the parent and the ticks of each process."""
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  9 9 9 9 9 9 9 {stolen} 0 0\n")
    for number, (parent, spent) in ticks.items():
        (folder / str(number)).mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 9, str(spent), "1", "2", "3", "0"]
        (folder / str(number) / "stat").write_text(f"{number} (a (b) 1 c) {' '.join(fields)}\n")
    return folder


def test_descendants_and_threads_of_the_kernel_do_not_count(tmp_path: Path) -> None:
    me = os.getpid()
    own = {me: (1, 1000), me + 1: (me, 1000), me + 2: (me + 1, 1000), 2: (0, 1000), 77: (2, 1000)}
    proc = processes(tmp_path, {**own, 1: (0, 94), me + 3: (1, 294)}, stolen=100)
    assert others_s(proc) == (94 + 6 + 294 + 6 + 100) / TICKS


def test_a_row_has_the_share_of_all_cores_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, 4.0, 4.5, 14.5, 24.5])
    monkeypatch.setattr("gradwire_lab.experiments.record.time.monotonic", lambda: next(moments))
    monkeypatch.setattr(record, "cores", lambda: 2)
    load = OtherPrograms(processes(tmp_path, {1: (0, 0)}))
    processes(tmp_path, {1: (0, TICKS)}, stolen=TICKS)
    assert load.joined({"a": 1}) == {"a": 1, OTHERS: 2 / 4 / 2}
    assert load.joined({}) == {}  # half a second says nothing
    processes(tmp_path, {1: (0, 0)}, stolen=TICKS)  # a parent that didn't wait for its child
    assert load.joined({}) == {OTHERS: 0.0}
    processes(tmp_path, {1: (0, 1000 * TICKS)}, stolen=TICKS)
    assert load.joined({}) == {OTHERS: 1.0}


@pytest.mark.parametrize("content", [None, "", "cpu 1 2 3", "cpu a b c d e f g h i j"])
def test_without_the_counts_of_linux_nothing_is_said(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "stat").write_text(content)
    load = OtherPrograms(tmp_path)
    load._since -= 10
    assert load.joined({"a": 1}) == {"a": 1}


def test_a_program_of_somebody_else_counts() -> None:
    seconds = 0.5
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN.format(seconds)!r}])"
    before = others_s()
    assert before is not None
    subprocess.run([sys.executable, "-c", orphan], check=True)  # the parent ends before its child
    until = time.monotonic() + 30
    while (others_s() or 0) - before < 0.9 * seconds:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_an_experiment_records_it(tmp_path: Path) -> None:
    def run(_options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
        time.sleep(record.SHORTEST_S)
        for cell in cells:
            report({**cell, "square": cell["number"] ** 2})

    rows = perform(replace(Squares().experiment(), run=run), Options((1, 2)), tmp_path, quiet=True)
    shares = {row["number"]: row[OTHERS] for row in rows if OTHERS in row}
    assert 0 <= shares[1] <= 1
    assert 2 not in shares


def test_rows_without_it_say_nothing() -> None:
    assert others_in_words([{}, {"a": 1}]) == ""
    assert others_in_words([{OTHERS: 0.25}]) == (
        "Other programs took 25.0 % of the cores (median of 1 row; 25.0 % at most)."
    )
