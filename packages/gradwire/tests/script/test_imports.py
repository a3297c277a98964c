from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gradwire.script.entry import when_imported

NAME = "module_that_only_this_test_imports"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield tmp_path
    sys.modules.pop(NAME, None)
    assert sys.meta_path == before, "nothing is left behind"


def test_a_module_is_changed_before_whoever_imports_it_sees_it(folder: Path) -> None:
    seen: list[int] = []

    def change(module: ModuleType) -> None:
        seen.append(module.value)
        module.value = 2  # type: ignore[attr-defined]

    when_imported(NAME, change)
    assert seen == []
    found = importlib.import_module(NAME)
    assert (seen, found.value) == ([1], 2)
    assert found.__spec__ is not None
    assert type(found.__spec__.loader).__module__ == "_frozen_importlib_external"
    assert found.__loader__ is found.__spec__.loader
    assert found.__file__ == str(folder / f"{NAME}.py")
    importlib.reload(found)
    assert (seen, found.value) == ([1], 1), "it was changed once"


@pytest.mark.usefixtures("folder")
def test_a_module_that_is_there_is_changed_at_once() -> None:
    found, seen = importlib.import_module(NAME), list[ModuleType]()
    when_imported(NAME, seen.append)
    assert seen == [found]


@pytest.mark.usefixtures("folder")
def test_a_module_that_nobody_has_is_missing_as_ever() -> None:
    name = f"{NAME}_else"
    when_imported(name, lambda _module: pytest.fail("it does not exist"))
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(name)
