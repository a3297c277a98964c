"""Names whose modules wait until they are asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradwire_lab.experiments.experiment import Catalogue


def test_a_module_is_imported_when_its_object_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_for.py").write_text("NUMBERS = [3]\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = Catalogue[list[int]]({"one": "asked_for:NUMBERS", "other": "not_there:NUMBERS"})
    assert [*found] == ["one", "other"]
    assert len(found) == len(found.values()) == 2
    assert "one" in found
    assert "asked_for" not in sys.modules
    assert found["one"] == [3]
    monkeypatch.delitem(sys.modules, "asked_for")
    with pytest.raises(ModuleNotFoundError):
        found["other"]
    assert "none" not in found
    with pytest.raises(KeyError):
        found["none"]
