"""Every reader of saved states and files, with damaged ones: each loads, or raises an error of gradwire's.

``GRADWIRE_DAMAGED=25000`` is the full size; a failure names the seed of its state.
"""

from __future__ import annotations

import ast
import gc
import inspect
import os
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import gradwire
import gradwire_gateware
import gradwire_lab
from gradwire.errors import GradwireError
from gradwire.sync.method import Method
from support.damage import damaged
from support.readers import Reader, holders, methods, small_readers

STATES = int(os.environ.get("GRADWIRE_DAMAGED", "2000"))
PACKAGES = [Path(str(each.__file__)).parent for each in (gradwire, gradwire_lab, gradwire_gateware)]
READS = re.compile(
    r"from_json|from_dict|of_state|of_environment|load_state_dict|redivide|load_gradients|adopted|load"
    r"|read_(results?|summary)"
)
EXEMPT = {"gradwire_lab.job.data.load": "reads data sets, and raises DataError"}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, Reader]]]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    with ExitStack() as closing:
        yield [*small_readers(tmp_path_factory.mktemp("readers")), *holders(closing)]
    dist.destroy_process_group()
    gc.collect()


def test_every_reader_of_the_package_is_here(readers: list[tuple[str, Reader]]) -> None:
    found = {
        name
        for package in PACKAGES
        for path in package.rglob("*.py")
        for name in _readers_in(path, package.parent)
    }
    assert found - EXEMPT.keys() == {name for name, _ in readers}, "support/readers.py has one state for each"
    with ExitStack() as closing:
        kinds = {type(each) for each in methods(closing)}
    assert {each for each in _below(Method) if not inspect.isabstract(each)} <= kinds


def _readers_in(path: Path, root: Path) -> Iterator[str]:
    """Yield the names of what reads what was saved: functions, class methods, and all ``load_state_dict``."""
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
        for each in inner:
            if isinstance(each, ast.FunctionDef) and READS.fullmatch(each.name):
                decorators = {ast.unparse(one) for one in each.decorator_list}
                if prefix == module or "classmethod" in decorators or each.name == "load_state_dict":
                    yield f"{prefix}.{each.name}"


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("gradwire"):
            yield each
            yield from _below(each)


def test_what_was_saved_loads(readers: list[tuple[str, Reader]]) -> None:
    for name, reader in readers:
        reader.load(reader.state)
        if reader.look is not None:
            reader.load(reader.state)
            assert same(reader.look(), reader.look()), name


@pytest.mark.timeout(120 + STATES // 50)
def test_a_damaged_state_loads_or_is_refused_in_a_sentence_and_then_changes_nothing(
    readers: list[tuple[str, Reader]], caplog: pytest.LogCaptureFixture
) -> None:
    wrong: dict[str, list[str]] = {}
    for seed in range(STATES):
        name, reader = readers[seed % len(readers)]
        found = _try(reader, damaged(reader.state, random.Random(seed), reader.is_json))
        if found is not None:
            wrong.setdefault(f"{seed % len(readers)} {name}: {found[:150]}", []).append(str(seed))
    wrong |= {each: [] for each in caplog.messages if not each.isprintable()}
    assert not wrong, "\n".join(f"{len(seeds)} ({seeds[0]}): {each}" for each, seeds in wrong.items())


def _try(reader: Reader, state: Any) -> str | None:
    """Return what is wrong after a state was loaded, in words; None if nothing is."""
    before = None if reader.look is None else reader.look()
    try:
        reader.load(state)
    except GradwireError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 1000:
            return f"no sentence: {text!r}"
        if reader.look is not None and not same(before, reader.look()):
            reader.load(reader.state)
            return f"what is refused changes something: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    else:
        if reader.look is not None:
            try:
                reader.load(reader.look()[0] if isinstance(before, tuple) else reader.look())
            except Exception as error:
                return f"what it loaded cannot be saved and loaded: {type(error).__name__}: {error}"
            reader.load(reader.state)
    return None


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal, NaN to itself."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or repr(one) == repr(other)
