"""A benchmark that takes minutes tells every row as it comes, beside its table and not in it."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from support.project import ROOT

BENCH = ROOT / "bench"
ROW_BY_ROW = re.compile(r"\btell\(|\bappend\(\s*out,|\bappend\(words\.as_rank,|flush=True")


def test_every_row_that_ranks_keep_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    append = runpy.run_path(str(BENCH / "testbed_ranks.py"))["append"]
    row = {"codec": "fp8", "seconds": 0.123456, "nbytes": 1 << 24, "curve": [1, 2, 3]}
    append(str(tmp_path / "rows.jsonl"), row)
    printed = capsys.readouterr()
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == row
    assert printed.err == "measured: codec fp8  seconds 0.1235  nbytes 16777216\n"
    assert printed.out == ""


@pytest.mark.parametrize("script", sorted(path.name for path in BENCH.glob("*.py")))
def test_no_script_is_silent_until_its_end(script: str) -> None:
    text = (BENCH / script).read_text(encoding="utf-8")
    if "__main__" in text:
        assert ROW_BY_ROW.search(text), f"{script} wants progress.tell for every row that it measures"
