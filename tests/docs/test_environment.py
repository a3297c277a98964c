"""docs/environment.md names the environment variables of the source, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.project import ROOT

SHAPE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_?|RANK|PATH|PYTHONPATH")
OTHERS = {"THREAD_FUNNELED", "THREAD_SINGLE", "THREAD_SERIALIZED", "THREAD_MULTIPLE"}  # MPI's own constants
BY_THE_STANDARD_LIBRARY = {"TMPDIR"}


def texts(folder: Path) -> Iterator[str]:
    """Yield every string in the Python files of a folder that is one word."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def documented() -> list[str]:
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([A-Z0-9_]+)`", cell)]


def test_every_variable_of_the_source_is_on_the_page_and_no_other() -> None:
    words = {text for text in texts(ROOT / "src") if SHAPE.fullmatch(text)} - OTHERS
    found = {word for word in words if not word.startswith("SC_")}  # what sysconf is asked for
    of_tests = {text for text in texts(ROOT / "tests") if re.fullmatch(r"GRADWIRE_(FAULT_\w+|ENDS)", text)}
    assert len(found) > 20
    assert len(of_tests) >= 4
    assert set(documented()) == found | of_tests | BY_THE_STANDARD_LIBRARY


def test_no_variable_is_named_twice() -> None:
    names = documented()
    assert sorted(names) == sorted(set(names))


def test_native_code_reads_no_variable() -> None:
    for path in (ROOT / "native").rglob("*.[ch]*"):
        assert "getenv" not in path.read_text(encoding="utf-8"), path
