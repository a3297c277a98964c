from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.benchmark.record import check_outputs, write_outputs
from gradwire.errors import JobError


def fail() -> bytes:
    raise AssertionError("nobody has asked for it")


def test_only_what_was_asked_for_is_made(tmp_path: Path) -> None:
    record, plot = tmp_path / "record.json", tmp_path / "plot.png"
    write_outputs(None, dict, None, fail)
    assert list(tmp_path.iterdir()) == []
    write_outputs(record, lambda: {"seconds": 2.5}, None, fail)
    assert json.loads(record.read_text()) == {"seconds": 2.5}
    write_outputs(None, dict, plot, lambda: b"drawn")
    assert plot.read_bytes() == b"drawn"


def test_one_file_cannot_be_both(tmp_path: Path) -> None:
    record = tmp_path / "out"
    with pytest.raises(JobError, match=r"^--json and --plot both name .*out; name two files$"):
        check_outputs(record, tmp_path / "." / "out", overwrite=False)


def test_an_older_result_is_refused_unless_it_may_go(tmp_path: Path) -> None:
    record = tmp_path / "out"
    record.write_text("old")
    with pytest.raises(JobError, match="--json"):
        check_outputs(record, None, overwrite=False)
    check_outputs(record, None, overwrite=True)
    assert record.read_text() == "old"
