"""Fail if a module has no test in its room, or if a folder of tests belongs to no room.

With ``--support``, write the index of each folder of support modules; otherwise, check the indexes.

The room of ``packages/P/src/P/ROOM/...`` has its tests in ``packages/*/tests/ROOM``, or in files next to the
rooms' folders that are named after the room or import from it first. A test covers the modules that it is
named after or imports from. Batteries test one property of many modules and have separate folders.
``simulated_device/ROOM`` has a room's tests on the simulated device. A module without functions needs no
test.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
BATTERIES = {
    "conformance": "every codec, algorithm, link, device, method or command against its contract",
    "docs": "pages and examples, as readers run them",
    "faults": "every fault with every entry point",
    "foreign": "PyTorch's own tests",
    "golden": "what the version before the split saved, chose and encoded",
    "learning": "models that train to a loss",
    "native": "the kernels of native/ against their definitions",
    "scripts": "bench/ and scripts/",
    "situations": "scripts of many kinds through every front door",
}
IMPORT = re.compile(r"^\s*from (gradwire[\w.]*) import (\([^)]*\)|[^\n]*)|\"(gradwire[\w.]+)\"", re.MULTILINE)
OTHERS = re.compile(r"^\s*(from|import) gradwire_(lab|gateware)\b", re.MULTILINE)
SUPPORT = """\
# What tests have in common

`scripts/check_tests.py --support` writes this page from the docstrings.

| module | what it gives | used by |
|---|---|---|
"""


def main() -> int:
    """Print the missing tests and the misplaced files; return the exit code."""
    modules = {name: path for name, path in all_modules() if has_behaviour(path)}
    rooms = {room_of(name) for name, _ in all_modules()}
    concerned, problems = defaultdict[str, set[str]](set), list[str]()
    for path, room in tests():
        if room not in rooms and not BATTERIES.keys() & set(path.parts):
            problems.append(
                f"{path}: move it to the folder of a room, or to a battery ({', '.join(BATTERIES)})"
            )
        concerned[room] |= {path.stem, *imported(path)}
    for name, path in sorted(modules.items()):
        leaf, found = path.stem.strip("_"), concerned[room_of(name)]
        is_room = found and name.count(".") == 1 and leaf != "init"
        if (
            not is_room
            and name not in found
            and not any(f"{each}_".startswith(f"test_{leaf}_") for each in found)
        ):
            problems.append(f"{path.relative_to(ROOT)}: write a test in packages/*/tests/{room_of(name)}")
    problems += [
        f"{path.relative_to(ROOT)}: the core's tests may only import the core; move it to another package"
        for path in sorted((ROOT / "packages" / "gradwire" / "tests").rglob("*.py"))
        if OTHERS.search(path.read_text(encoding="utf-8"))
    ]
    for folder in sorted(ROOT.glob("packages/*/tests/support")):
        page, wanted = folder / "README.md", support_page(folder)
        if "--support" in sys.argv[1:]:
            page.write_text(wanted, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != wanted:
            problems.append(f"{page.relative_to(ROOT)}: run scripts/check_tests.py --support")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(f"{len(modules)} modules with behaviour, each with tests in its room\n" * (not problems))
    return 1 if problems else 0


def all_modules() -> Iterator[tuple[str, Path]]:
    """Yield the modules of all packages and their files."""
    for source in sorted(ROOT.glob("packages/*/src")):
        for path in sorted(source.rglob("*.py")):
            yield ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"), path


def room_of(module: str) -> str:
    """Return the room of a module; a package's top-level module belongs to the room of its name."""
    package, *inside = module.split(".")
    return inside[0].strip("_") if inside else package


def tests() -> Iterator[tuple[Path, str]]:
    """Yield the test files, relative to the root, and the room of each."""
    rooms = {room_of(name) for name, _ in all_modules()}
    for folder in [*sorted(ROOT.glob("packages/*/tests")), ROOT / "tests"]:
        for path in sorted(folder.rglob("test_*.py")):
            room, *rest = path.relative_to(folder).parts
            if room == "simulated_device" and len(rest) > 1:
                room, *rest = rest
            yield path.relative_to(ROOT), room.strip("_") if rest else room_of_file(path, rooms)


def room_of_file(path: Path, rooms: Container[str]) -> str:
    """Return the room of a test file outside a room's folder, from its name, else from its first import."""
    words = path.stem.split("_")[1:]
    if words == ["init"]:
        return "gradwire"
    named = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    package = path.relative_to(ROOT).parts[1].replace("-", "_")  # of packages/NAME/tests
    found = (room_of(name) for name in imported(path) if name.startswith(f"{package}."))
    return next((each for each in (*named, *found) if each in rooms), "")


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that a test imports from or names in a string."""
    for module, names, said in IMPORT.findall((ROOT / path).read_text(encoding="utf-8")):
        yield module or said.rpartition(".")[0]
        yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))
        yield said


def support_page(folder: Path) -> str:
    """Return the index of test support: a line per module, with the rooms that use it."""
    rows = []
    for path in sorted(folder.glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        summary = " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| `{path.stem}` | {summary} | {', '.join(users(path.stem)) or 'nobody'} |\n")
    return SUPPORT + "".join(rows)


def users(module: str) -> list[str]:
    """Return the rooms whose tests import a support module, or name the module or its file in a string."""
    imports = rf"from support import (\([^)]*\b{module}\b|[^\n]*\b{module}\b)"
    use = re.compile(rf"\bsupport\.{module}\b|{imports}|\"{module}\.py\"")
    return sorted({room for room, path, text in texts() if path.stem != module and use.search(text)})


@cache
def texts() -> list[tuple[str, Path, str]]:
    """Return the room, path, and text of every test file."""
    found = [("conftest", ROOT / "conftest.py")]
    for folder in [*ROOT.glob("packages/*/tests"), ROOT / "tests"]:
        found += [
            (each.relative_to(folder).parts[0].removesuffix(".py"), each) for each in folder.rglob("*.py")
        ]
    return [(room, path, path.read_text(encoding="utf-8")) for room, path in found]


def has_behaviour(path: Path) -> bool:
    """Return whether a module defines a function with a body."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(not isinstance(line, ast.Expr | ast.Pass) for each in functions for line in each.body)


if __name__ == "__main__":
    sys.exit(main())
