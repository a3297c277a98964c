from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.project import DOCS

TEXT = (DOCS / "accounting.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_python_of_the_page_runs_and_leaves_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/accounting.md", "exec"), names)
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == 10
    printed = capsys.readouterr().out
    for line in ("gradwire, rank 0: 10 steps in ", "total ", "no gradient bypassed the codec"):
        assert line in printed
