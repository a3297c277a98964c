"""docs/environment.md names the environment variables of the source, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.project import ALL_TESTS, ROOT

SHAPE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+_?|RANK|PATH|PYTHONPATH")
OF_TESTS = re.compile(
    r"GRADWIRE_(?:FAULT_\w+|ENDS|FLIPS|DAMAGED\w*|OFFLOAD_STEPS|GATEWARE_VALUES|HOSTILE_WORDS|SITUATIONS)"
)
OF_MPI = {"THREAD_FUNNELED", "THREAD_SINGLE", "THREAD_SERIALIZED", "THREAD_MULTIPLE"}
OTHERS = OF_MPI | {"IS_ODD"}  # a constant of a kernel
NAMES = re.compile(r"^ *([A-Z][A-Z0-9_]+(?:, [A-Z][A-Z0-9_]+)*)(?::[^=\n]+)? = ", re.MULTILINE)
"""Constants of the source, which packages list by their names."""
BOTH = {"MASTER_PORT"}  # a variable, and a constant with its value in a testbed
NO_VARIABLES = ("SC_", "MISTRAL_", "TRELLIS_")  # what sysconf is asked for, and cells of FPGAs
BY_THE_STANDARD_LIBRARY = {"TMPDIR"}


def texts(folder: Path, shape: re.Pattern[str]) -> Iterator[str]:
    """Yield every string of a shape in the Python files of a folder."""
    quoted = re.compile(rf"""["'](?:{shape.pattern})["']""")
    for path in folder.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if quoted.search(source):  # few have any, and to parse all takes seconds
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Constant) and shape.fullmatch(str(node.value)):
                    yield str(node.value)


def documented() -> list[str]:
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([A-Z0-9_]+)`", cell)]


def test_every_variable_of_the_source_is_on_the_page_and_no_other() -> None:
    folders = [*ROOT.glob("packages/*/src")]
    words = {word for folder in folders for word in texts(folder, SHAPE)} - OTHERS
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    constants = {name for source in sources for names in NAMES.findall(source) for name in names.split(", ")}
    constants -= BOTH
    found = {word for word in words - constants if not word.startswith(NO_VARIABLES)}
    of_tests = {word for folder in ALL_TESTS for word in texts(folder, OF_TESTS)}
    assert len(found) > 20
    assert len(of_tests) >= 4
    assert set(documented()) == found | of_tests | BY_THE_STANDARD_LIBRARY


def test_no_variable_is_named_twice() -> None:
    names = documented()
    assert sorted(names) == sorted(set(names))


def test_native_code_reads_no_variable() -> None:
    sources = [*ROOT.glob("packages/*/native/**/*.[ch]*")]
    assert len(sources) > 20
    for path in sources:
        assert "getenv" not in path.read_text(encoding="utf-8"), path
