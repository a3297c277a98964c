"""Damaged states: what a bit of rot, another version, or a hand on a file can make of what was saved.

A state is nested dictionaries, lists, numbers, texts and tensors. JSON inside a text is opened, damaged like
the rest, and sealed again, so that damage gets past the checksums to the readers behind them.
"""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gradwire.checkpoints import SUM, of_tensor, sealed, sealed_text

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
