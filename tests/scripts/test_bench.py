"""A benchmark that takes minutes tells every row as it comes, beside its table and not in it."""

from __future__ import annotations

import re

import pytest

from support.project import ROOT

BENCH = ROOT / "bench"
ROW_BY_ROW = re.compile(r"flush=True")


@pytest.mark.parametrize("script", sorted(path.name for path in BENCH.glob("*.py")))
def test_no_script_is_silent_until_its_end(script: str) -> None:
    text = (BENCH / script).read_text(encoding="utf-8")
    if "__main__" in text:
        assert ROW_BY_ROW.search(text), f"{script} must print every row that it measures, with flush=True"
