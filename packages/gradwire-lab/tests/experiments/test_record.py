"""The record of an experiment: which older ones it continues, and which it leaves alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.checkpoints import SUM, is_as_sealed
from gradwire.errors import JobError
from gradwire_lab.experiments.record import RecordFile, read_rows
from support.fake_experiment import Options, Squares

EXPERIMENT = Squares().experiment()
ROW = {"number": 1, "square": 1}


def opened(folder: Path, options: Options | None = None, overwrite: bool = False) -> RecordFile:
    return RecordFile(EXPERIMENT, options or Options(), folder, overwrite)


def written(folder: Path, finished: bool = False, **changed: object) -> dict[str, Any]:
    """Write a record of one row, with other fields; return it."""
    opened(folder, overwrite=True).add(ROW, finished)
    path = folder / "record.json"
    record = json.loads(path.read_text())
    record.pop(SUM)
    record |= changed
    path.write_text(json.dumps(record))
    return dict(record)


def test_it_says_what_was_measured_where(tmp_path: Path) -> None:
    record = written(tmp_path)
    assert record["question"] == EXPERIMENT.question
    assert record["options"] == {"numbers": [3, 1, 2], "file": None}
    assert {"system", "processor", "cores", "target"} <= set(record["machine"])
    assert set(record["versions"]) == {"gradwire", "python", "torch", "numpy"}
    assert read_rows(tmp_path / "record.json", EXPERIMENT)["rows"] == [ROW]


def test_an_unfinished_one_goes_on_with_its_rows(tmp_path: Path) -> None:
    written(tmp_path)
    again = opened(tmp_path)
    assert again.rows == [ROW]
    again.add({"number": 2, "square": 4}, finished=True)
    assert len(json.loads((tmp_path / "record.json").read_text())["rows"]) == 2


def test_seconds_and_rows_of_several_commits_add_up(tmp_path: Path) -> None:
    first = written(tmp_path, commit="abc", measured_s=50.0)
    assert "commits" not in first
    again = RecordFile(EXPERIMENT, Options(), tmp_path, False, across_commits=True, expected_s=70.0)
    assert 50 <= again.measured_s < 60
    again.add({"number": 2, "square": 4}, finished=False)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["commits"] == {"abc": 1, record["commit"]: 1}
    assert record["expected_s"] == 70
    assert 50 <= record["measured_s"] < 60
    assert is_as_sealed(record)


def test_an_older_one_without_a_commit_goes_on(tmp_path: Path) -> None:
    record = written(tmp_path)
    del record["commit"]
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert opened(tmp_path).rows == [ROW]


def test_a_finished_one_is_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    written(tmp_path, finished=True)
    found = RecordFile(EXPERIMENT, Options(), tmp_path, overwrite=False, keeps_finished=True)
    assert (found.rows, found.is_finished) == ([ROW], True)
    other = Options(numbers=(1, 2))
    with pytest.raises(JobError, match=r"holds a finished record that differs in options"):
        RecordFile(EXPERIMENT, other, tmp_path, overwrite=False, keeps_finished=True)


def test_a_path_among_the_options_is_kept_by_its_last_name(tmp_path: Path) -> None:
    options = Options(file=Path("/home/somebody/text.txt"))
    opened(tmp_path, options).add(ROW, finished=False)
    assert "somebody" not in (tmp_path / "record.json").read_text()
    assert opened(tmp_path, options).rows == [ROW]


def test_a_number_that_is_not_finite_becomes_null(tmp_path: Path) -> None:
    opened(tmp_path).add({"number": 1, "square": float("nan")}, finished=False)
    assert opened(tmp_path).rows == [{"number": 1, "square": None}]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"finished": True}, "contains an older result (record.json); pass another folder, or --overwrite"),
        (
            {"options": {"numbers": [1, 2], "file": None}},
            "numbers was [1, 2] and is [3, 1, 2]); repeat with the recorded options",
        ),
        ({"options": {"numbers": [3, 1, 2]}}, "differs in options (file was missing and is None)"),
        ({"options": None}, "differs in options (None instead of"),
        (
            {"machine": {"cores": 96}},
            "holds an unfinished record that differs in machine (cores was 96 and is",
        ),
        ({"commit": "abc"}, "holds an unfinished record that differs in commit (abc instead of"),
        ({"versions": {"torch": "1.0"}}, "holds an unfinished record that differs in versions ("),
        ({"schema": "gradwire.experiment-squares/0"}, "an unfinished record from an older gradwire"),
        ({"schema": "gradwire.experiment-squares/9"}, "was written by a newer gradwire"),
        ({"schema": "gradwire.train/1"}, "expected the schema gradwire.experiment-squares/1"),
        ({SUM: 1}, "was altered after it was written: expected the checksum 1 over its fields and rows"),
        ({"measured_s": "long"}, "is damaged: expected seconds as 'measured_s', got 'long'"),
        ({"measured_s": -1}, "is damaged: expected seconds as 'measured_s', got -1"),
        ({"rows": 7}, "is damaged: expected a list of JSON objects as 'rows'"),
        ({"rows": [7]}, "is damaged: expected a list of JSON objects as 'rows'"),
    ],
)
def test_another_one_stays_as_it_is(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    written(tmp_path, **changed)
    before = (tmp_path / "record.json").read_bytes()
    with pytest.raises(JobError) as caught:
        opened(tmp_path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "record.json").read_bytes() == before
    assert opened(tmp_path, overwrite=True).rows == []


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda folder: (folder / "record.json").write_text("{"), "is not valid JSON"),
        (lambda folder: (folder / "record.json").mkdir(), "cannot be read"),
        (lambda folder: (folder / "plot.png").write_text("a picture of somebody"), "cannot be read"),
    ],
)
def test_what_is_no_record_stays_too(tmp_path: Path, prepare: Callable[[Path], object], reason: str) -> None:
    prepare(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(JobError, match=reason):
        opened(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"--out .*file.* cannot be written"):
        opened(tmp_path / "file" / "out")
