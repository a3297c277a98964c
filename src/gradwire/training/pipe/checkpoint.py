"""What a checkpoint holds of a pipeline, and what becomes of it in a world of another size.

A state is a flat dictionary. Its keys name the rank, so that a checkpoint that all ranks write into one
place, such as that of ``torch.distributed.checkpoint``, keeps one entry for each of them, and no rank can
take another's by mistake:

- ``gradwire/rank3/pipe``: a JSON text with rank, world, counters and the hyperparameters of the gradients in
  flight;
- ``gradwire/rank3/residual/<key>``: what this rank's encodings lost, where the plan keeps residuals;
- ``gradwire/rank3/own``: float32 ``(pipeline - 1, count)``, where updates are eager: this rank's own
  gradients of the newest steps in flight, oldest first, then rows of zeros;
- ``gradwire/in_flight``: float32 ``(pipeline, count)``, the averaged gradients in flight, oldest first, then
  rows of zeros. An average is the same on every rank, so it needs no rank in its name and is stored once.

The shape of everything depends on model and plan alone, since ``torch.distributed.checkpoint`` loads into
the state of a new object.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch

from gradwire.codecs.spec import is_whole
from gradwire.errors import StateError, shown
from gradwire.training.checksum import of_tensor, opened_text, sealed_text
from gradwire.training.gradients.residual import redivide as redivide_residuals
from gradwire.training.pipe.in_flight import InFlight

IN_FLIGHT = "gradwire/in_flight"
_PIPE = re.compile(r"gradwire/rank(\d+)/pipe")
_VERSION = 3
_READABLE = (1, 2, 3)
"""Files of version 1 have no own gradients: the averages stand in for them. Before version 3 parameters that
backward did not reach have gradients of 0, and nothing has a checksum."""

_SEALED_SINCE = 3

State = dict[str, Any]


@dataclass(frozen=True)
class PipeState:
    """One rank's pipeline: what ``pack`` turns into a state and ``unpack`` returns.

    Attributes
    ----------
    rank, world
        Whose it is.
    steps_done
        How many steps were taken.
    in_flight
        The averaged gradients that are still to be applied, oldest first.
    residuals
        What the rank's encodings lost, by the keys of ``Residuals``; empty where the plan keeps none.
    """

    rank: int
    world: int
    steps_done: int
    in_flight: Sequence[InFlight]
    residuals: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def of_residuals(self) -> dict[str, Any]:
        """Return what ``Residuals.load_state_dict`` takes."""
        return {"rank": self.rank, "world": self.world, "residuals": dict(self.residuals)}


def pack(own: PipeState, pipeline: int, count: int, own_count: int) -> State:
    """Return the state that holds ``own``, of a pipeline of so many gradients of ``count`` floats.

    ``own_count`` says how many own gradients the pipeline can keep.
    """
    kept = [each.own for each in own.in_flight if each.own is not None][-own_count:] if own_count else []
    text = {
        "version": _VERSION,
        "rank": own.rank,
        "world": own.world,
        "steps_done": own.steps_done,
        "in_flight": [[_written(group) for group in each.scheduled] for each in own.in_flight],
        "own": len(kept),
        "absent": [each.absent for each in own.in_flight],
        "own_absent": [each.own_absent for each in own.in_flight],
    }
    tensors = {IN_FLIGHT: _rows([each.gradient for each in own.in_flight], pipeline, count)}
    if own_count:
        tensors[f"{_prefix(own.rank)}own"] = _rows(kept, own_count, count)
    tensors |= {f"{_prefix(own.rank)}residual/{key}": tensor for key, tensor in own.residuals.items()}
    sums = {key: [tensor.numel(), of_tensor(tensor)] for key, tensor in tensors.items()}
    return {f"{_prefix(own.rank)}pipe": sealed_text({**text, "sums": sums}), **tensors}


def _rows(gradients: Sequence[torch.Tensor], most: int, count: int) -> torch.Tensor:
    """Return a matrix of ``most`` rows that begins with these."""
    rows = torch.zeros(most, count, dtype=torch.float32, device="cpu")
    for row, each in zip(rows, gradients, strict=False):
        row.copy_(each)
    return rows


def unpack(state: Mapping[str, Any], rank: int, world: int) -> PipeState:
    """Return what this rank's state holds.

    Raises ``StateError`` for a state of another rank or world, and for what ``pack`` has not made.
    """
    own = f"{_prefix(rank)}pipe"
    if not isinstance(state, Mapping) or own not in state:
        raise StateError(
            f"rank {rank} wants its own state, with the key {own!r}, but {_whose(state)} came; every rank "
            "loads what it saved itself"
        )
    found = _read(state, rank)
    if found.world != world:
        raise StateError(
            f"rank {rank} of {world} wants a state of {world} ranks, but one of {found.world} came; "
            "gradwire.training.pipe.checkpoint.redivide turns the states of all old ranks into the new ones"
        )
    return found


def redivide(states: Sequence[Mapping[str, Any]], world: int) -> list[State]:
    """Return states for a world of another size.

    The gradients in flight are averages, equal on all ranks, so every new rank keeps them as they are, with
    the hyperparameters of their steps. Residuals are every rank's own; they are divided anew, so that their
    sum over the ranks is kept. Own gradients mean nothing to other ranks: in another world the averages stand
    in for them.

    Parameters
    ----------
    states
        Those of all old ranks, in any order, saved after the same step.
    world
        How many ranks there will be, from 1 up.

    Returns
    -------
    list
        The states of the new ranks, in their order.

    Raises
    ------
    StateError
        When a rank is missing or came twice, and when the states are not of the same moment.
    """
    olds = [_read(state, _rank_of(state)) for state in states]
    divided = redivide_residuals([old.of_residuals() for old in olds], world)
    _check_same_moment(olds)
    pipeline, count = states[0][IN_FLIGHT].shape
    ranked = {old.rank: old.in_flight for old in olds}
    if len(olds) != world:
        without = [replace(each, own=None, own_absent=()) for each in olds[0].in_flight]
        ranked = dict.fromkeys(range(world), without)
    own_count = len(states[0].get(f"{_prefix(olds[0].rank)}own", ()))
    return [
        pack(
            replace(olds[0], rank=rank, world=world, in_flight=ranked[rank], residuals=own["residuals"]),
            pipeline,
            count,
            own_count,
        )
        for rank, own in enumerate(divided)
    ]


def _check_same_moment(olds: Sequence[PipeState]) -> None:
    first = olds[0]
    for old in olds:
        if old.steps_done != first.steps_done or not _equal(old.in_flight, first.in_flight):
            raise StateError(
                f"the states must be of the same moment, but rank {old.rank}, after {old.steps_done} steps, "
                f"has other gradients in flight than rank {first.rank}, after {first.steps_done}; take them "
                "from one checkpoint"
            )


def _equal(some: Sequence[InFlight], others: Sequence[InFlight]) -> bool:
    """Tell whether the gradients have the same bits; a NaN equals itself."""
    return len(some) == len(others) and all(
        torch.equal(one.gradient.view(torch.int32), other.gradient.view(torch.int32))
        for one, other in zip(some, others, strict=True)
    )


def _read(state: Mapping[str, Any], rank: int) -> PipeState:
    prefix = _prefix(rank)
    try:
        (text, is_sealed), rows = opened_text(state[f"{prefix}pipe"]), state[IN_FLIGHT]
        if text["version"] not in _READABLE:
            raise ValueError(f"its version is {text['version']}, this is {_VERSION}")
        if not is_sealed and text["version"] >= _SEALED_SINCE:
            raise ValueError("its text has lost its checksum")
        if not _is_matrix(rows):
            raise ValueError(f"{IN_FLIGHT} is no float32 matrix")
        scheduled = [[_understood(group) for group in groups] for groups in text["in_flight"]]
        own = _own_rows(state.get(f"{prefix}own"), text.get("own", 0), len(scheduled))
        absent, own_absent = (_numbers(text.get(name), len(own)) for name in ("absent", "own_absent"))
        in_flight = [
            InFlight(*each) for each in zip(rows[: len(own)], scheduled, own, absent, own_absent, strict=True)
        ]
        if not is_whole(text["steps_done"], len(own), sys.maxsize):
            raise ValueError(f"it has {len(own)} gradients in flight after {text['steps_done']!r} steps")
        if not all(scheduled):
            raise ValueError("a gradient in flight has no hyperparameters")
        _check_sums(state, text.get("sums", {}))
        start = f"{prefix}residual/"
        residuals = {key.removeprefix(start): state[key] for key in state if key.startswith(start)}
        return PipeState(rank, int(text["world"]), int(text["steps_done"]), in_flight, residuals)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StateError(
            f"the state of rank {rank} is not one that PipeSGD.state_dict made: {error!r}"
        ) from error


def _check_sums(state: Mapping[str, Any], sums: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where tensors are missing or altered; those of other lengths fit nowhere."""
    for key, (count, wanted) in sums.items():
        tensor = state[key]
        if isinstance(tensor, torch.Tensor) and tensor.numel() == count and of_tensor(tensor) != wanted:
            raise ValueError(f"{key} has another checksum than when it was saved")


def _own_rows(rows: object, kept: int, in_flight: int) -> list[torch.Tensor | None]:
    """Return the own gradient of every gradient in flight; those of the newest are kept."""
    if not kept:
        return [None] * in_flight
    if not _is_matrix(rows):
        raise ValueError("its own gradients are no float32 matrix")
    if not 0 < kept <= min(in_flight, len(rows)):
        raise ValueError(f"it has {in_flight} gradients in flight, but {kept} own ones")
    return [*[None] * (in_flight - kept), *rows[:kept]]


def _numbers(found: object, in_flight: int) -> list[tuple[int, ...]]:
    """Return the numbers of parameters that are kept for every gradient in flight."""
    if found is None:
        return [()] * in_flight
    if not isinstance(found, list) or not all(
        is_whole(number, 0, sys.maxsize) for each in found for number in each
    ):
        raise ValueError(f"the parameters that were not reached are {found!r}")
    return [tuple(each) for each in found]


def _is_matrix(rows: object) -> TypeGuard[torch.Tensor]:
    return isinstance(rows, torch.Tensor) and rows.dim() == 2 and rows.dtype == torch.float32


def _prefix(rank: int) -> str:
    return f"gradwire/rank{rank}/"


def ranks_in(names: Mapping[str, Any]) -> list[int]:
    """Return the ranks whose states are among these keys."""
    return sorted(int(match[1]) for match in map(_PIPE.fullmatch, map(str, names)) if match)


def _rank_of(state: Mapping[str, Any]) -> int:
    ranks = ranks_in(state)
    if len(ranks) != 1:
        raise StateError(f"the state of one rank is wanted, but {_whose(state)} came")
    return ranks[0]


def _whose(state: object) -> str:
    if not isinstance(state, Mapping):
        return shown(state)
    ranks = ranks_in(state)
    return f"a state of rank {', '.join(map(str, ranks))}" if ranks else "one without any rank's key"


def _written(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return scheduled values as JSON has them: tensors with their dtype, tuples as lists."""

    def write(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
        return [write(part) for part in value] if isinstance(value, tuple | list) else value

    return {name: write(value) for name, value in group.items()}


def _understood(group: Mapping[str, Any]) -> dict[str, Any]:
    """Undo ``_written``."""

    def read(value: Any) -> Any:
        if isinstance(value, dict):
            return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
        return tuple(read(part) for part in value) if isinstance(value, list) else value

    return {name: read(value) for name, value in group.items()}
