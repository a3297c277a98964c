"""One rank's state of a training method in a checkpoint, and its conversion to a different number of ranks.

A state is a flat dictionary whose keys contain the rank. So a checkpoint that all ranks share, such as one of
``torch.distributed.checkpoint``, has separate entries for each rank, and no rank loads another rank's state:

- ``gradwire/rank3/pipe``: a JSON string with version, method, plan, rank, world, steps, and the decisions of
  ``"auto"``, and for a pipeline, the hyperparameters of the gradients in flight. All methods use this key.
  ``attach`` uses ``gradwire/rank3/attached`` instead, and ``attach_fsdp`` uses
  ``gradwire/rank3/attached_shards``, because neither can load a method's state;
- ``gradwire/rank3/residual/<key>``: the encoding errors of this rank, if the plan keeps residuals;
- ``gradwire/rank3/own``: float32 ``(pipeline - 1, count)``, if updates are eager: this rank's own
  gradients of the newest steps in flight, oldest first, then rows of zeros;
- ``gradwire/in_flight``: float32 ``(pipeline, count)``, the averaged gradients in flight, oldest first, then
  rows of zeros. An average is the same on every rank, so its key has no rank, and it is stored once;
- ``gradwire/rank3/model/<name>`` and ``gradwire/rank0/optimizer``, only for bounded staleness. A drained
  worker has the weights that the server sent last. Under a lossy codec, they differ from the server's.

All shapes depend only on model and plan, because ``torch.distributed.checkpoint`` loads into the state of a
new object.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradwire.checkpoints import SUM, check_sealed, of_tensor, opened_text, sealed, sealed_text
from gradwire.codecs.spec import is_whole
from gradwire.deferred import outside_inference
from gradwire.errors import StateError, shown
from gradwire.fields import (
    ABOVE_ZERO,
    Fields,
    Source,
    flag,
    keyed,
    line,
    mapping,
    named,
    one_of,
    pair,
    real,
    rows,
    tensor_of,
    whole,
)
from gradwire.sync.bucket.residual import AUTO, SCALE, STEPS
from gradwire.sync.bucket.residual import redivide as redivide_residuals
from gradwire.sync.flat.update import understood, written

IN_FLIGHT = "gradwire/in_flight"
ATTACHED, ATTACHED_SHARDS = "attached", "attached_shards"
"""The values of ``RankState.method`` for ``attach`` and ``attach_fsdp``, which have separate entries."""
_MAKERS = {ATTACHED: " (of attach)", ATTACHED_SHARDS: " (of attach_fsdp)"}
_ENTRY = re.compile(rf"gradwire/rank(\d+)/(pipe|{ATTACHED}|{ATTACHED_SHARDS})")
_VERSION = 3
_READABLE = (1, 2, 3)
"""The readable versions of states.

Version 1 has no own gradients; loading it puts the averages in their place. Before version 3, unused
parameters have gradients of 0, and there are no checksums. The first files of version 3 have neither method
nor plan. All of them are from PipeSGD, because states of bounded staleness had different keys.
"""
_SEALED_SINCE = 3  # the first version with checksums
_OLDER = {"rank", "world", "clock", "model"}
"""The fields that all older states of bounded staleness have, besides residuals or an optimizer."""

_RESIDUALS, _BESIDE = {"rank", "world", "residuals"}, {SCALE, STEPS, AUTO, SUM}
"""The required and optional fields of a state that holds only residuals."""

_VALUES, _MATRIX = tensor_of(anywhere=True), tensor_of(torch.float32, None, None, anywhere=True)
_NO_SUMS: dict[str, tuple[int, int]] = {}
_NO_ROWS = torch.empty(0, 0, dtype=torch.float32, device="cpu")
_ABSENT, _NUMBERS = ("absent", "own_absent"), rows(whole())

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InFlight:
    """An averaged gradient that has not been applied yet, as saved in a checkpoint."""

    gradient: torch.Tensor  # a copy, 1-D float32 on the CPU, in the layout of ``FlatGradients.buffer``
    scheduled: list[dict[str, Any]]  # the hyperparameters of its step (``flat.update.scheduled``)
    own: torch.Tensor | None = None  # for eager updates, a copy of this rank's own gradient of the step
    absent: tuple[int, ...] = ()  # the parameters unused on all ranks
    own_absent: tuple[int, ...] = ()  # the parameters unused on this rank


@dataclass(frozen=True)
class RankState:
    """The state of one rank's method, which ``pack`` writes and ``unpack`` reads."""

    rank: int
    world: int
    steps_done: int
    method: str = ""  # empty in files of older versions
    plan: str = ""  # as JSON; empty in files of older versions
    in_flight: Sequence[InFlight] = ()  # oldest first
    room: tuple[int, int, int] = (0, 0, 0)  # most averages, most own gradients, and the floats in each
    residuals: Mapping[str, torch.Tensor] = field(default_factory=dict)  # by the keys of ``Residuals``
    model: Mapping[str, torch.Tensor] | None = None
    optimizer: Mapping[str, Any] | None = None
    auto: str = ""  # the state of the automatic choice of plans as JSON
    scale: float | None = None  # the loss scale that the residuals are multiplied by, if any

    def of_residuals(self, below: int = 0) -> dict[str, Any]:
        """Return the state of ``Residuals``, with ranks renumbered so that ``below`` becomes rank 0."""
        rank, world = self.rank - below, self.world - below
        scale = {} if self.scale is None else {SCALE: self.scale}
        return {"rank": rank, "world": world, "residuals": dict(self.residuals), **scale}


def pack(state: RankState) -> State:
    """Return a rank's state as a flat dictionary."""
    pipeline, own_count, count = state.room
    own = [each.own for each in state.in_flight if each.own is not None][-own_count:] if own_count else []
    text = {
        "version": _VERSION,
        "method": state.method,
        "plan": state.plan,
        "rank": state.rank,
        "world": state.world,
        "steps_done": state.steps_done,
        "in_flight": [[written(group) for group in each.scheduled] for each in state.in_flight],
        "own": len(own),
        "absent": [each.absent for each in state.in_flight],
        "own_absent": [each.own_absent for each in state.in_flight],
        "keeps_model": state.model is not None,
        "auto": state.auto,
        **({} if state.scale is None else {SCALE: state.scale}),
    }
    prefix = f"gradwire/rank{state.rank}/"
    tensors = {}
    if pipeline:
        tensors[IN_FLIGHT] = _rows([each.gradient for each in state.in_flight], pipeline, count)
    if own_count:
        tensors[f"{prefix}own"] = _rows(own, own_count, count)
    tensors |= {f"{prefix}residual/{key}": tensor for key, tensor in state.residuals.items()}
    tensors |= {
        f"{prefix}model/{name}": tensor.detach().clone() for name, tensor in (state.model or {}).items()
    }
    sums = {key: [tensor.numel(), of_tensor(tensor)] for key, tensor in tensors.items()}
    packed = {f"{prefix}{_entry(state.method)}": sealed_text({**text, "sums": sums}), **tensors}
    if state.optimizer is not None:
        packed[f"{prefix}optimizer"] = sealed(copy.deepcopy(state.optimizer))
    return packed


def _rows(gradients: Sequence[torch.Tensor], most: int, count: int) -> torch.Tensor:
    """Return a matrix of ``most`` rows, the given gradients followed by zeros."""
    rows = torch.zeros(most, count, dtype=torch.float32, device="cpu")
    for row, each in zip(rows, gradients, strict=False):
        row.copy_(each)
    return rows


def unpack(state: Mapping[str, Any], rank: int, world: int | None, method: str = "PipeSGD") -> RankState:
    """Read this rank's state from ``pack``. With ``world`` None, accept a state of any number of ranks.

    Raises ``StateError`` for a state of a different rank or world, and for one that ``pack`` did not create.
    """
    own = f"gradwire/rank{rank}/{_entry(method)}"
    if not isinstance(state, Mapping) or (own not in state and not _is_older(state, rank)):
        raise StateError(
            f"rank {rank}: expected the state of this rank, with the key {own!r}, got {_whose(state)}; "
            "load on each rank the state that the same rank saved"
        )
    found = _read(state, rank, method)
    if world is not None and found.world != world:
        raise StateError(
            f"rank {rank} of {world}: expected a state of {world} ranks, got one of {found.world} ranks; "
            "pass the states of all old ranks to gradwire.redivide first"
        )
    return found


@outside_inference
def redivide(states: Sequence[Mapping[str, Any]], world: int) -> list[State]:
    """Convert the states of any method but ``Sharded``, or of ``attach``, to a different number of ranks.

    The gradients in flight are averages, equal on all ranks, so every new rank gets them, with the
    hyperparameters of their steps. Residuals differ between ranks; they are redistributed so that their sum
    over the ranks (over the workers, if rank 0 is a server) stays the same. A rank's own gradients are valid
    only on that rank, so the averages replace them.

    Parameters
    ----------
    states
        The states of all old ranks, in any order, saved after the same step.
    world
        The new number of ranks, at least 1, or at least 2 including a server.

    Returns
    -------
    list
        The states of the new ranks, in rank order.

    Raises
    ------
    StateError
        If a rank is missing or occurs twice, or if the states are not from the same step.
    """
    if all(isinstance(state, Mapping) and set(state) - _BESIDE == _RESIDUALS for state in states):
        return redivide_residuals(states, world)
    olds = sorted((_read(state, *_owner_of(state)) for state in states), key=lambda old: old.rank)
    first = int(bool(olds) and olds[0].rank == 0 and "Server" in olds[0].method)
    divided = redivide_residuals([old.of_residuals(first) for old in olds[first:]], world - first)
    _check_same_moment(olds)
    if len(olds) != world:
        without = [replace(each, own=None, own_absent=()) for each in olds[0].in_flight]
        olds = [*olds[:first], *[replace(olds[first], in_flight=without)] * len(divided)]
    residuals = [{}] * first + [own["residuals"] for own in divided]
    return [
        pack(replace(old, rank=rank, world=world, residuals=own))
        for rank, (old, own) in enumerate(zip(olds, residuals, strict=True))
    ]


def _check_same_moment(olds: Sequence[RankState]) -> None:
    first = olds[0]
    # As integers, NaNs with the same bits are equal.
    averages = [each.gradient.view(torch.int32) for each in first.in_flight]
    for old in olds:
        own = [each.gradient.view(torch.int32) for each in old.in_flight]
        is_equal = len(own) == len(averages) and all(map(torch.equal, own, averages))
        if old.steps_done != first.steps_done or not is_equal:
            raise StateError(
                f"expected the same step and gradients in flight on all ranks, but rank {old.rank}, after "
                f"{old.steps_done} steps, differs from rank {first.rank}, after {first.steps_done}; use "
                "states from one checkpoint"
            )


def _read(state: Mapping[str, Any], rank: int, method: str = "PipeSGD") -> RankState:
    remedy, prefix = f"load a state that {method}.state_dict returned", f"gradwire/rank{rank}/"
    source = Source(f"the state of rank {rank}", remedy, StateError)
    given = source.fields(state)
    if _is_older(state, rank):
        return _read_older(given)
    text, is_sealed = given.get(f"{prefix}{_entry(method)}", opened_text)
    words = source.fields(text)
    if words.get("version", one_of(*_READABLE)) >= _SEALED_SINCE and not is_sealed:
        raise StateError(
            f"expected a checksum in the state of rank {rank}, got none; load an earlier checkpoint"
        )
    averages, own = (given.get(key, _MATRIX, _NO_ROWS) for key in (IN_FLIGHT, f"{prefix}own"))
    scheduled = words.get("in_flight", rows(rows(keyed(understood))))
    count = source.read(len(scheduled), whole(0, len(averages)), "the number of gradients in flight")
    if not all(scheduled):
        raise StateError(
            f"expected hyperparameters for each gradient in flight of rank {rank}, got a gradient without "
            "hyperparameters; load an earlier checkpoint"
        )
    kept = words.get("own", whole(0, min(count, len(own))), 0)
    absent, own_absent = (words.get(each, rows(_NUMBERS, count), ((),) * count) for each in _ABSENT)
    mine = [*[None] * (count - kept), *own[:kept]]
    flown = zip(averages[:count], map(list, scheduled), mine, absent, own_absent, strict=True)
    for key, (numel, wanted) in words.get("sums", keyed(pair(whole(), whole())), _NO_SUMS).items():
        if key not in state:
            raise StateError(
                f"expected a value for {key} in the state of rank {rank}, got nothing; load an earlier "
                "checkpoint, or use gradwire.sync.dcp.read_ranks instead of dcp.load"
            )
        found = given.get(key, _VALUES)  # the callers check lengths
        if found.numel() == numel and of_tensor(found) != wanted:
            raise StateError(f"{key} is damaged: its checksum differs; load an earlier checkpoint")
    return RankState(
        rank,
        words.get("world", whole(1)),
        words.get("steps_done", whole(count)),
        words.get("method", line, ""),
        words.get("plan", line, ""),
        [InFlight(*each) for each in flown],
        (len(averages), len(own), averages.shape[1]),
        given.below(f"{prefix}residual/", _VALUES),
        given.below(f"{prefix}model/", _VALUES) if words.get("keeps_model", flag, False) else None,
        given.get(
            f"{prefix}optimizer",
            lambda value: check_sealed(mapping(value), "the values of the optimizer"),
            None,
        ),
        words.get("auto", line, ""),
        words.get(SCALE, real(ABOVE_ZERO), None),
    )


def _is_older(state: object, rank: int) -> bool:
    """Return whether ``state`` is this rank's state of bounded staleness from an older version."""
    return isinstance(state, Mapping) and set(state) >= _OLDER and is_whole(state["rank"], rank, rank)


def _read_older(given: Fields) -> RankState:
    optimizer, kept = given.get("optimizer", mapping, None), {}
    if optimizer is None:
        known = named(sorted(_RESIDUALS | _BESIDE), ["residuals"])
        kept = given.get("residuals", lambda value: keyed(_VALUES)(known(value)["residuals"]))
    return RankState(
        given.get("rank", whole()),
        given.get("world", whole(1)),
        given.get("clock", whole()),
        "StaleWorker" if optimizer is None else "StaleServer",
        residuals=kept,
        model=given.get("model", keyed(_VALUES)),
        optimizer=optimizer,
    )


def _entry(method: str) -> str:
    """Return the last part of the key under which a method's JSON text is saved."""
    return method if method in (ATTACHED, ATTACHED_SHARDS) else "pipe"


def entries_in(names: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the rank and the last part of the key of every JSON text in ``names``, sorted."""
    return sorted((int(match[1]), match[2]) for match in map(_ENTRY.fullmatch, map(str, names)) if match)


def _owner_of(state: Mapping[str, Any]) -> tuple[int, str]:
    """Return the rank and the method of a state that ``redivide`` can convert."""
    if isinstance(state, Mapping) and set(state) >= _OLDER and is_whole(state["rank"], 0, sys.maxsize):
        return int(state["rank"]), "PipeSGD"
    entries = entries_in(state) if isinstance(state, Mapping) else []
    if len(entries) != 1:
        raise StateError(f"expected the state of one rank, got {_whose(state)}; pass one state per rank")
    rank, entry = entries[0]
    if entry == ATTACHED_SHARDS:
        raise StateError(
            f"rank {rank}: redivide: expected states that can be divided among ranks, got a state of "
            "attach_fsdp, whose shards depend on the number of ranks; continue without calling redivide and "
            "load_state_dict"
        )
    return rank, "PipeSGD" if entry == "pipe" else entry


def _whose(state: object) -> str:
    if not isinstance(state, Mapping):
        return shown(state)
    if set(state) >= _OLDER:
        return f"a state of rank {shown(state['rank'])}"
    ranks = [f"{rank}{_MAKERS.get(entry, '')}" for rank, entry in entries_in(state)]
    return f"a state of rank {', '.join(ranks)}" if ranks else "a mapping without any rank's key"
