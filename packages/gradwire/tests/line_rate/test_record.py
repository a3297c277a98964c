from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError, SpecError
from gradwire.line_rate.run import Outputs
from support.launched import launch


def fail() -> bytes:
    raise AssertionError("nobody has asked for it")


def shown(record: Mapping[str, Any]) -> str:
    return f"seconds: {record['seconds']}"


def test_only_what_was_asked_for_is_made(tmp_path: Path) -> None:
    record, plot = tmp_path / "record.json", tmp_path / "plot.png"
    Outputs().write_outputs(dict, shown, fail)
    assert list(tmp_path.iterdir()) == []
    Outputs(json_file=record).write_outputs(lambda: {"seconds": 2.5}, shown, fail)
    assert json.loads(record.read_text()) == {"seconds": 2.5}
    Outputs(plot_file=plot).write_outputs(dict, shown, lambda: b"drawn")
    assert plot.read_bytes() == b"drawn"
    assert (tmp_path / "report.html").read_text() == "seconds: 2.5"


def test_one_file_cannot_be_both(tmp_path: Path) -> None:
    record = tmp_path / "out"
    with pytest.raises(SpecError, match=r"^expected two files for --json and .*out twice; change one path$"):
        Outputs(json_file=record, plot_file=tmp_path / "." / "out").check_outputs()
    with pytest.raises(SpecError, match=r"^expected two files for the page of --json and --plot, got .*html"):
        Outputs(json_file=record, plot_file=tmp_path / "out.html").check_outputs()


def test_only_the_rank_that_writes_must_be_able_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    outputs = Outputs(json_file=tmp_path / "file" / "a", plot_file=tmp_path / "file" / "b")
    launch(monkeypatch, 1, 2)
    outputs.check_outputs()
    launch(monkeypatch, 0, 2)
    with pytest.raises(JobError, match="cannot be written"):
        outputs.check_outputs()


def test_an_older_result_is_refused_unless_it_may_go(tmp_path: Path) -> None:
    record = tmp_path / "out"
    record.write_text("old")
    with pytest.raises(JobError, match="--json"):
        Outputs(json_file=record).check_outputs()
    Outputs(json_file=record, overwrite=True).check_outputs()
    (tmp_path / "line.html").write_text("old")
    with pytest.raises(JobError, match=r"line\.html, which exists already"):
        Outputs(json_file=tmp_path / "line.json").check_outputs()
    assert record.read_text() == "old"
