from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

import gradwire
from support.project import ROOT

OTHERS = """
from __future__ import annotations

__all__ = ["Base", "LIMIT", "Child", "Late", "act", "again"]
LIMIT = 3

class Base:
    SIZE = 1
    def grow(self, by: int = 1) -> Base: ...
    def _hidden(self): ...

class _Between(Base):
    @property
    def width(self): ...

class Child(_Between, ValueError):
    SIZE = 2
    def grow(self, by: int = 2) -> Base: ...
    @classmethod
    def of(cls, text): ...

class Late(ValueError):
    def add_note(self, note: str) -> None: ...
    def mend(self) -> None: ...

def act(x: int, *, y: str = "a") -> None: ...
again = act
def other(): ...
"""


@pytest.fixture(scope="module")
def list_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("list_api", ROOT / "scripts" / "list_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_is_the_one_that_is_written_down(list_api: ModuleType) -> None:
    for file, found in list_api.listing().items():
        written = (list_api.DOCS / file).read_text(encoding="utf-8")
        assert found.splitlines() == written.splitlines(), (
            "if that is on purpose: python scripts/list_api.py --write"
        )


def test_the_list_has_every_name_of_gradwire(list_api: ModuleType) -> None:
    text = (list_api.DOCS / "api.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"^gradwire\.(\w+):", text, re.MULTILINE)) == set(gradwire.__all__)
    assert text.startswith("gradwire.attach: def(")
    assert len(text.splitlines()) <= 350


def test_a_line_tells_all_that_a_caller_depends_on(list_api: ModuleType) -> None:
    module = ModuleType("shop")
    exec(OTHERS, module.__dict__)
    for each in vars(module).values():
        if isinstance(each, type):
            each.__module__ = "gradwire.shop"
    assert list(list_api.lines_of([module])) == [
        "shop.Base: class()",
        "shop.Base.SIZE: attribute",
        "shop.Base.grow: def(self, by: int = 1) -> Base",
        "shop.Child: class(...) of _Between, ValueError",
        "shop.Child.of: classmethod def(cls, text)",
        "shop.Child.width: property",
        "shop.LIMIT: int",
        "shop.Late: class(...) of ValueError",
        "shop.Late.mend: def(self) -> None",
        "shop.act: def(x: int, *, y: str = 'a') -> None",
        "shop.again: the same as shop.act",
    ]
