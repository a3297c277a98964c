"""Fail if a module has no test file of its own, or a test file names no module.

``src/gradwire/ROOM/WING/module.py`` is tested by ``tests/ROOM/WING/test_module.py``, and by
``test_module_ASPECT.py`` beside it; ``__init__.py`` by ``test_init.py``. Batteries test one property of many
modules and have folders of their own. A module without functions needs no test.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "gradwire", ROOT / "tests"
BATTERIES = {
    "conformance": "every codec, algorithm, link, device, method or command against its contract",
    "docs": "pages and examples, as readers run them",
    "faults": "every fault with every entry point",
    "foreign": "PyTorch's own tests",
    "learning": "models that train to a loss",
    "native": "the kernels of native/ against their definitions",
    "scripts": "bench/ and scripts/",
    "situations": "scripts of many kinds through every front door",
}


def main() -> int:
    """Print what is missing and what names no module; return the exit code."""
    modules = {path.relative_to(SOURCE).with_suffix(""): path for path in SOURCE.rglob("*.py")}
    wanted = {test_of(name): name for name, path in modules.items() if has_behaviour(path)}
    problems = [
        f"src/gradwire/{name}.py: write tests/{test}.py"
        for test, name in sorted(wanted.items())
        if not (TESTS / test).with_suffix(".py").exists()
    ]
    names = {test_of(name).as_posix() for name in modules}
    problems += [
        f"tests/{test}.py: name it after a module, or move it to a battery ({', '.join(BATTERIES)})"
        for test in sorted(tests())
        if not any(test == name or test.startswith(f"{name}_") for name in names)
    ]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(f"{len(wanted)} modules with behaviour, each with its test file\n" * (not problems))
    return 1 if problems else 0


def test_of(name: Path) -> Path:
    """Return the test file of a module, both without suffix."""
    return name.with_name(f"test_{name.name.strip('_')}")


def tests() -> Iterator[str]:
    """Yield the test files outside batteries, without suffix."""
    for path in TESTS.rglob("test_*.py"):
        file = path.relative_to(TESTS)
        if not BATTERIES.keys() & set(file.parts[:-1]):
            yield file.with_suffix("").as_posix()


def has_behaviour(path: Path) -> bool:
    """Return whether a module defines a function that does something."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return any(not isinstance(line, ast.Expr | ast.Pass) for each in functions for line in each.body)


if __name__ == "__main__":
    sys.exit(main())
