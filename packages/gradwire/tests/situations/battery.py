"""Tables of situations, and the judgement of what each front door shows in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import torch

from situations.doors import ATTACHED, DOORS, PIPES, Job, Outcome, Situation, play_all

WORLD = 2
"""A sum of two has the same bits in either order, so the oracle's bits are the expected ones."""
LATER = 20.0
"""How far later averages and the last weights may be from the oracle's, in bounds of one average."""
WHOLE = "GRADWIRE_SITUATIONS" in os.environ
"""Whether all rows have all doors. By default only every third row has the doors with ``auto``, which take
three times as long as others."""
CHOSEN = 10.0
"""Divides ``later`` for ``auto``, whose error is a share of the largest value."""

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Row:
    """A situation; what it must show differs by door only where docs list a refusal.

    ``refused`` maps doors, or ``attach`` and ``PipeSGD`` for all of a kind, to a part of the sentence with
    which they refuse. ``fails`` is a part of DDP's own error, with which plain training ends. ``rounds`` is
    how many averages are in the first gradient. ``later`` is as ``LATER``.
    """

    situation: Situation
    doors: tuple[str, ...]
    refused: Mapping[str, str]
    fails: str
    rounds: int
    later: float

    def __str__(self) -> str:
        return self.situation.__name__

    def refusal(self, door: str) -> str:
        kind = "PipeSGD" if DOORS[door].size else "attach"
        return "" if DOORS[door].plan is None else self.refused.get(door, self.refused.get(kind, ""))


class Table:
    """The situations of one file, in ``rows``."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(
        self,
        doors: tuple[str, ...] = tuple(DOORS),
        refused: Mapping[str, str] = NOTHING,
        fails: str = "",
        rounds: int = 1,
        later: float = LATER,
        whole: bool = WHOLE,
    ) -> Callable[[Situation], Situation]:
        """Return a decorator that adds a situation; a ``whole`` row has its doors with ``auto`` always."""

        def add(situation: Situation) -> Situation:
            useless = {"plain"} if "attach" in refused else set()
            useless |= {"by hand, K=1", "by hand"} if "PipeSGD" in refused else set()
            if not (whole or refused or fails) and len(self.rows) % 3:
                useless |= {name for name in DOORS if DOORS[name].chooses}
            chosen = tuple(door for door in doors if door not in useless)
            self.rows.append(Row(situation, chosen, refused, fails, rounds, later))
            return situation

        return add


def without(*left_out: str) -> tuple[str, ...]:
    """Return all doors but these."""
    return tuple(name for name in DOORS if name not in left_out)


def check(row: Row, run_processes: Callable[..., list[Any]]) -> None:
    """Assert that every door shows what it must."""
    ranks: list[dict[str, Outcome]] = run_processes(WORLD, play_all, row.situation, list(row.doors))
    problems = [
        f"{door}, rank {rank}: {problem}"
        for door in row.doors
        for rank, outcomes in enumerate(ranks)
        for problem in _problems(row, door, outcomes, ranks[0][door])
    ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def _problems(row: Row, name: str, outcomes: dict[str, Outcome], first: Outcome) -> Iterator[str]:
    door, found, refusal = DOORS[name], outcomes[name], row.refusal(name)
    if refusal:
        if not (found.ours and refusal in found.error and "\n" not in found.error):
            yield f"expected a refusal with {refusal!r}, got {found.error or 'none'}"
        return
    if row.fails:
        if not (row.fails in found.error or found.ours):
            yield f"expected an error with {row.fails!r}, as in plain training; got {found.error or 'none'}"
        return
    if found.error:
        yield found.error
        return
    if not (row.refused or _same(found.weights, first.weights)):
        yield "its weights differ from rank 0's"
    if door.plan is None:
        return
    plain = outcomes[door.oracle]
    if door.size:
        found.averages = plain.averages
    if door.error is None:
        for what in ("losses", "averages", "weights", "buffers"):
            yield from _compare_bits(what, getattr(found, what), getattr(plain, what))
        return
    for number, (ours, theirs) in enumerate(zip(found.averages, plain.averages, strict=True)):
        times = row.rounds if number == 0 else row.later
        most = door.error(_flat(theirs).abs()) * times / (CHOSEN if door.chooses and number else 1)
        yield from _compare(f"averages {number}", ours, theirs, most)
    moved = (_flat(plain.weights) - _flat(plain.before)).abs()
    yield from _compare(
        "weights",
        found.weights,
        plain.weights,
        door.error(moved) * row.later / (CHOSEN if door.chooses else 1),
    )


def _compare_bits(what: str, found: list[Any], wanted: list[Any]) -> Iterator[str]:
    if len(found) != len(wanted):
        yield f"expected {len(wanted)} {what}, got {len(found)}"
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        if not (_same(ours, theirs) if isinstance(ours, list) else _same([ours], [theirs])):
            yield f"{what} {number}: expected plain training's {_brief(theirs)}, got {_brief(ours)}"
            return


def _compare(
    what: str, found: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor | None], most: float
) -> Iterator[str]:
    if [each is None for each in found] != [each is None for each in wanted]:
        yield f"{what}: other parameters have none than in plain training"
        return
    roughest = max((_eps(each) * float(_flat([each]).abs().max()) for each in wanted), default=0.0)
    off = float((_flat(found) - _flat(wanted)).abs().nan_to_num(torch.inf).max()) if found else 0.0
    if off > most + roughest:
        yield f"{what} are {off:.3g} away from plain training's, expected at most {most:.3g}"


def _same(ours: list[Any], theirs: list[Any]) -> bool:
    return [*map(_bits, ours)] == [*map(_bits, theirs)]


def _bits(value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    tensor = torch.as_tensor(value) if isinstance(value, torch.Tensor) else torch.tensor(value).double()
    return tensor.shape, tensor.dtype, tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _flat(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    parts = [_real(each).double().reshape(-1) for each in tensors if each is not None]
    return torch.cat([*parts, torch.zeros(1, dtype=torch.double)])


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _eps(tensor: torch.Tensor | None) -> float:
    """Return what rounding to the tensor's dtype may change, as a share."""
    return torch.finfo(tensor.dtype).eps if tensor is not None and tensor.is_floating_point() else 0.0


def _brief(value: Any) -> str:
    return str(
        value
        if isinstance(value, float)
        else _flat(value if isinstance(value, list) else [value])[:4].tolist()
    )


__all__ = ["ATTACHED", "DOORS", "PIPES", "Job", "Table", "check", "without"]
