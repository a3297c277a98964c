"""Cells are measured once: from the start, after an interruption, and after a failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.errors import JobError, LinkError
from gradwire_lab.experiments import perform
from support.fake_experiment import Options, Squares

ALL = [{"number": 3, "square": 9}, {"number": 1, "square": 1}, {"number": 2, "square": 4}]


def test_rows_come_in_the_order_of_the_cells_with_a_table_and_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    squares = Squares(plot=b"picture")
    assert perform(squares.experiment(), Options(), tmp_path / "new" / "out") == ALL
    assert squares.measured == [2, 1, 3]
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == [
        "1/3 number 2  square 4",
        "2/3 number 1  square 1",
        "3/3 number 3  square 9",
    ]
    assert all(line.endswith("s left") for line in lines[:2])
    assert [line.strip() for line in lines[3:]] == ["square", "------", "9", "1", "4"]
    record = json.loads((tmp_path / "new" / "out" / "record.json").read_text())
    assert (record["schema"], record["finished"], record["rows"]) == (
        "gradwire.experiment-squares/1",
        True,
        ALL,
    )
    assert (tmp_path / "new" / "out" / "plot.png").read_bytes() == b"picture"


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert perform(Squares(plot=b"picture").experiment(), Options(), quiet=True) == ALL
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LinkError("a host is gone"), MemoryError()])
def test_what_was_measured_before_an_end_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    first = Squares(breaks_after=2, error=error)
    with pytest.raises(type(error)):
        perform(first.experiment(), Options(), tmp_path)
    assert capsys.readouterr().err == (
        f"gradwire: 2 of 3 cells are in {tmp_path}; to measure the other cells, repeat the command with "
        f"--out {tmp_path}\n"
    )
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["finished"], record["rows"]) == (False, [ALL[2], ALL[1]])

    second = Squares()
    assert perform(second.experiment(), Options(), tmp_path) == ALL
    assert second.measured == [3]
    assert second.before == [ALL[1], ALL[2]]
    assert capsys.readouterr().out.startswith("3/3 number 3  square 9\n")
    assert json.loads((tmp_path / "record.json").read_text())["rows"] == ALL


def test_an_end_before_the_first_cell_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        perform(Squares(breaks_after=0).experiment(), Options(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_an_end_after_the_last_cell_needs_no_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_parts: object) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("gradwire_lab.experiments.record.show", failed)
        with pytest.raises(BrokenPipeError):
            perform(Squares().experiment(), Options(), tmp_path)
    again = Squares()
    assert perform(again.experiment(), Options(), tmp_path, quiet=True) == ALL
    assert again.measured == []


def test_new_cells_of_a_finished_record_replace_its_rows_and_finish_it(tmp_path: Path) -> None:
    perform(Squares().experiment(), Options(), tmp_path, quiet=True)
    squares = Squares().experiment()
    cells = [{"number": 3, "data": "mnist"}, {"number": 1}]
    other = type(squares)(**{**vars(squares), "cells": lambda _options: cells})
    rows = perform(other, Options(), tmp_path, keeps_finished=True, quiet=True)
    assert rows == [{"number": 3, "data": "mnist", "square": 9}, ALL[1]]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["finished"]
    assert record["rows"] == rows


def test_overwriting_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        perform(Squares(breaks_after=2).experiment(), Options(), tmp_path, quiet=True)
    anew = Squares()
    assert perform(anew.experiment(), Options(), tmp_path, overwrite=True, quiet=True) == ALL
    assert anew.measured == [2, 1, 3]


def test_a_cell_without_a_row_is_an_error(tmp_path: Path) -> None:
    squares = Squares().experiment()
    idle = type(squares)(**{**vars(squares), "run": lambda *_: None})
    with pytest.raises(JobError, match="squares: expected 3 cells, got 0"):
        perform(idle, Options(), tmp_path / "out", quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_record_comes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    perform(Squares(plot=b"picture").experiment(), Options(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    assert "The plot needs matplotlib, which isn't installed" in capsys.readouterr().out
