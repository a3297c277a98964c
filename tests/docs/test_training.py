from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.project import DOCS

TEXT = (DOCS / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_python_of_the_page_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"block {number} of docs/training.md", "exec"), {})


def test_the_page_shows_how_a_plan_is_followed() -> None:
    assert len(BLOCKS) >= 2
    assert any("plan.json" in block for block in BLOCKS)
