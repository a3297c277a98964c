"""Every module that a string names can be imported.

A wrong name is silent or late: the fork server ignores a module that it cannot preload and costs seconds
afterwards, ``-m`` fails on another host, and a look-up by ``importlib`` fails when it is first used.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.cli.main import commands
from gradwire_gateware.blocks import BLOCKS
from support.project import ALL_TESTS, ROOT

NAME = re.compile(r"(gradwire|gradwire_lab|gradwire_gateware)(\.\w+)+(:\w+)?")
OTHERS = {
    **dict.fromkeys(("gradwire.choice", "gradwire.ledger", "gradwire.train"), "a kind of record"),
    **dict.fromkeys(("gradwire.algorithms", "gradwire.checks", "gradwire.commands"), "entry points"),
    "gradwire.pages": "entry points",
    "gradwire.lossy": "a logger",
    "gradwire.toml": "a file of settings",
}
"""What is written like a module's name, and what it names instead."""
IMPORT_ALL = """
import os, pkgutil, sys, torch
preloaded, named = (each.split() for each in sys.argv[1:])
for name in preloaded:  # each before any other module of gradwire
    child = os.fork()
    if child == 0:
        pkgutil.resolve_name(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name} cannot be preloaded")
for name in named:
    pkgutil.resolve_name(name)
"""


@pytest.mark.processes
def test_every_name_of_a_module_can_be_imported() -> None:
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files()}
    preloaded = {name for path, tree in modules.items() for name in preloads(tree, path)}
    assert {"gradwire.launch.local", "gradwire.ddp.attach", "torch._dynamo"} <= preloaded
    named = {name for tree in modules.values() for name in strings(tree) if NAME.fullmatch(name)}
    named |= {where for _, where in commands().values()}
    named |= {f"gradwire_gateware.{block.module}:{block.name}" for block in BLOCKS.values()}
    assert {"gradwire_lab.experiments.hosts.rank", "gradwire_lab.testbed.supervisor"} <= named
    words = [" ".join(sorted(each)) for each in (preloaded, named - OTHERS.keys())]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *words], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def files() -> Iterator[Path]:
    """Yield the packages' sources and what their tests have in common."""
    for source in sorted(ROOT.glob("packages/*/src")):
        yield from source.rglob("*.py")
    for tests in ALL_TESTS:
        yield from (tests / "support").glob("*.py")


def strings(tree: ast.AST) -> Iterator[str]:
    """Yield all texts of a module, or of a part of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def preloads(tree: ast.AST, path: Path) -> Iterator[str]:
    """Yield the modules that a module lets the fork server import."""
    for node in ast.walk(tree):
        lists: list[ast.AST] = []
        if isinstance(node, ast.Call):
            lists += [each.value for each in node.keywords if each.arg == "preload"]
            lists += node.args if ast.unparse(node.func).endswith("set_forkserver_preload") else []
        elif isinstance(node, ast.Assign) and "PRELOAD" in ast.unparse(node.targets[0]):
            lists.append(node.value)
        for each in lists:
            yield from strings(each)
            if any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(each)):
                source = next(folder for folder in path.parents if folder.name == "src")
                yield ".".join(path.relative_to(source).with_suffix("").parts)
