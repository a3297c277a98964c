from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
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


class Finder(MetaPathFinder):
    """A finder of one module, with a loader that refuses new attributes."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, SlottedLoader()) if fullname == NAME else None  # type: ignore[arg-type]


class SlottedLoader:
    __slots__ = ()

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        module.value = 3  # type: ignore[attr-defined]


@pytest.mark.usefixtures("folder")
def test_two_hooks_see_a_module_whose_loader_refuses_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    def see(name: str, module: ModuleType) -> None:
        seen.append((name, module.value))

    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
        for name in "ab":
            when_imported(NAME, partial(see, name))
        found = importlib.import_module(NAME)
    assert seen == [("a", 3), ("b", 3)]
    loaders: list[object] = [found.__loader__, getattr(found.__spec__, "loader", None)]
    assert isinstance(loaders[0], SlottedLoader)
    assert loaders[1] is loaders[0]
