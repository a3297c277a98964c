from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradwire.script.start.sitecustomize import run_hidden


def test_the_one_that_the_folder_hides_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sitecustomize", sys)
    here, other = tmp_path / "here", tmp_path / "other"
    for folder, word in ((here, "wrong"), (other, "right")):
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"found = {word!r}\n", encoding="utf-8")
    run_hidden(str(here), [str(here), str(other)])
    assert sys.modules["sitecustomize"].found == "right"


def test_where_none_is_hidden_nothing_happens(tmp_path: Path) -> None:
    run_hidden(str(tmp_path), [str(tmp_path)])
