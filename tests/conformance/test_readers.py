"""Every reader of saved states and files, with damaged ones: each loads, or raises an error of gradwire's.

``GRADWIRE_DAMAGED=25000`` is the full size; a failure names the seed of its state.
"""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import json
import math
import os
import random
import re
from collections.abc import Iterator, Mapping
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
from gradwire.checkpoints import SUM, of_tensor, sealed, sealed_text
from gradwire.errors import GradwireError
from gradwire.sync.method import Method
from support.readers import Reader, holders, methods, small_readers

DEEP: Any = 0
for _ in range(50):
    DEEP = [DEEP]
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 1 << 31, 1 << 63, -(1 << 63), 1 << 70, 10**400, 0.5, -0.0, 1e308,
    -1e308, math.nan, math.inf, -math.inf, "", "x", "ring", "quantize:8", "0", "1e9", "a\x1b[31m\r\nb\x00",
    "\ud800", "é" * 300, [], [[]], [0], [None], [1.5, "x"], {}, {"": {}}, {"a": 1, "b": [{}]}, DEEP,
)  # fmt: skip
"""What JSON can hold, and hold in the wrong place."""


def torch_junk() -> tuple[Any, ...]:
    """Return what only ``torch.save`` can hold; new each time, for loading may keep it."""
    return (
        torch.zeros(3), torch.zeros(()), torch.zeros(0), torch.zeros(2, 0), torch.full((3,), math.nan),
        torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, device="meta"), torch.zeros(3).to_sparse(), torch.zeros(3, dtype=torch.bool), b"bytes",
        (), (1, "x"), 1j, {1: 2}, {None: None}, set(), torch.float32, torch.nn.Parameter(torch.zeros(3)),
    )  # fmt: skip


class Json(dict[str, Any]):
    """A JSON object that lies in the state as a text."""


def opened(value: Any) -> Any:
    """Return a copy whose containers may be changed, texts of JSON objects among them."""
    if isinstance(value, Mapping):
        return {key: opened(each) for key, each in value.items()}
    if isinstance(value, list):
        return [*map(opened, value)]
    if isinstance(value, str) and value.startswith("{"):
        return Json({key: opened(each) for key, each in json.loads(value).items()})
    return value


def closed(value: Any, seal: bool = True) -> Any:
    """Undo ``opened``; what had a checksum has a right one again, if ``seal``."""
    if isinstance(value, dict):
        content = {key: closed(each, seal) for key, each in value.items()}
        had_sum = SUM in content and seal
        if had_sum:
            del content[SUM]
        if isinstance(value, Json):
            return sealed_text(content) if had_sum else json.dumps(content)
        return _sealed(content) if had_sum else content
    return [closed(each, seal) for each in value] if isinstance(value, list) else value


def _sealed(content: dict[Any, Any]) -> dict[Any, Any]:
    try:
        return sealed(content)
    except (RuntimeError, TypeError, ValueError):  # of a tensor that has no bytes, say
        return {**content, SUM: 7}


def _with_sums(state: Any) -> None:
    """Give the tensors of a method's state the checksums that they have after the damage."""
    texts = [each for each in state.values() if isinstance(each, Json)] if isinstance(state, dict) else []
    for text in texts:
        sums = text.get("sums")
        for key in [*sums] if isinstance(sums, dict) else ():
            tensor = state.get(key)
            assert isinstance(sums, dict)
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and not tensor.is_sparse:
                sums[key] = [tensor.numel(), of_tensor(tensor)]


def _places(node: Any, inside: bool = False) -> Iterator[tuple[Any, Any, bool]]:
    """Yield each container with each of its keys, and whether that is inside of a JSON text."""
    inside = inside or isinstance(node, Json)
    for key, each in node.items() if isinstance(node, dict) else enumerate(node):
        yield node, key, inside
        if isinstance(each, dict | list):
            yield from _places(each, inside)


def damaged(state: Any, rng: random.Random, json_only: bool) -> Any:
    """Return a copy of ``state`` with one to three damages."""
    if rng.random() < 0.03:
        return rng.choice(JUNK if json_only else (*JUNK, *torch_junk()))
    root = opened(state)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(root))
        if not places:
            break
        _damage(*rng.choice(places), rng, json_only)
    if rng.random() < 0.8:
        _with_sums(root)
    return closed(root, seal=rng.random() < 0.9)


def _damage(node: Any, key: Any, inside: bool, rng: random.Random, json_only: bool) -> None:
    value, pick = node[key], rng.random()
    junk = JUNK if inside or json_only else (*JUNK, *torch_junk())
    if pick < 0.12:
        del node[key]
    elif pick < 0.2 and isinstance(node, dict):
        name: Any = rng.choice(("extra", "", "a\x1b[31m\nb", "\ud800", "rank", "version"))
        node[name if inside or json_only else rng.choice((name, 3, None))] = copy.deepcopy(rng.choice(junk))
    elif pick < 0.2:
        node.append(copy.deepcopy(rng.choice(junk)))
    elif pick < 0.25 and isinstance(node, dict):
        node[f"{key}x"] = node.pop(key)
    elif pick < 0.65:
        node[key] = _near(value, rng)
    else:
        node[key] = copy.deepcopy(rng.choice(junk))


def _near(value: Any, rng: random.Random) -> Any:
    """Return something like ``value`` that it is not."""
    if isinstance(value, torch.Tensor):
        return _near_tensor(value, rng)
    if isinstance(value, bool):
        return rng.choice((int(value), not value, str(value)))
    if isinstance(value, int):
        half = value + 0.5 if abs(value) < 1 << 60 else ""
        return rng.choice((-value - 1, value + 1, half, str(value), bool(value), value << 64, [value]))
    if isinstance(value, float):
        return rng.choice((-value - 1, math.nan, math.inf, -math.inf, str(value), 1 << 1100, [value], 1e-320))
    if isinstance(value, str):
        return rng.choice((value[1:], value + "\n", value.upper(), [value], value + ",x=1", value * 50, 3))
    if isinstance(value, list):
        named = dict(zip(map(str, range(len(value))), value, strict=True))
        return rng.choice((value[1:], [*value, *value], value[::-1], named, None, [value]))
    if isinstance(value, dict):
        return rng.choice(([*value], [*value.items()][:1], {}, [value], str(len(value)), None))
    return 0


def _near_tensor(tensor: torch.Tensor, rng: random.Random) -> Any:
    if tensor.is_sparse or tensor.is_complex() or tensor.device.type != "cpu":
        return tensor.shape
    flat = tensor.reshape(-1)
    nan = flat.clone()
    if len(nan) and nan.is_floating_point():
        nan[0] = rng.choice((math.nan, math.inf))
    return rng.choice((
        tensor.double(), tensor.half(), tensor.int(), tensor.to("meta"), tensor[None], flat, flat[1:],
        torch.cat([flat, flat]), nan.reshape(tensor.shape), tensor.tolist(), tensor.to(torch.complex64),
        flat[:0], torch.nn.Parameter(tensor.float().clone()), torch.zeros_like(tensor),
        tensor.clone().t() if tensor.dim() == 2 else flat[::2], tensor.to_sparse() if len(flat) else None,
    ))  # fmt: skip


STATES = int(os.environ.get("GRADWIRE_DAMAGED", "2000"))
PACKAGES = [Path(str(each.__file__)).parent for each in (gradwire, gradwire_lab, gradwire_gateware)]
READS = re.compile(
    r"from_json|from_dict|of_state|of_environment|of_record|of_text|load_state_dict|redivide|load_gradients|adopted|load"
    r"|read_(results?|summary)"
)
EXEMPT = {
    "gradwire_lab.job.data.load": "reads data sets, and raises DataError",
    "gradwire.tables.Column.of_text": "reads nothing: it makes a column",
}


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
