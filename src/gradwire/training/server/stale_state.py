"""What a checkpoint of bounded staleness holds, taken when all workers have drained.

Every rank saves and loads its own. A drained worker has the weights that the server sent last, which a lossy
codec of the weights makes others than the server's; so it saves them too, and a run that goes on has the bits
of one that was never stopped.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from gradwire.codecs.spec import is_whole
from gradwire.errors import StateError

_LARGEST_CLOCK = (1 << 31) - 1  # what a message holds


def pack(rank: int, world: int, clock: int, model: nn.Module, **more: object) -> dict[str, Any]:
    """Return the state of a rank after ``clock`` steps: copies, and what else it has."""
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return {"rank": rank, "world": world, "clock": clock, "model": weights, **copy.deepcopy(more)}


def check(state: Mapping[str, Any], rank: int, world: int, model: nn.Module, *more: str) -> None:
    """Raise ``StateError`` unless ``pack`` made ``state`` on this rank, of such a model, with ``more``."""
    names = ("rank", "world", "clock", "model", *more)
    if not isinstance(state, Mapping) or set(state) != set(names):
        found = ", ".join(map(str, state)) if isinstance(state, Mapping) else repr(state)
        raise StateError(
            f"the state of rank {rank} has {', '.join(names)}, but {found} came; each rank loads what its "
            "own state_dict returned"
        )
    if (state["rank"], state["world"]) != (rank, world):
        raise StateError(
            f"rank {rank} of {world} wants its own state, but one of rank {state['rank']} of "
            f"{state['world']} came; each rank loads its own, in a world of the same size"
        )
    if not is_whole(state["clock"], 0, _LARGEST_CLOCK):
        raise StateError(f"the clock of a state must be a whole number from 0 up, but is {state['clock']!r}")
    _check_model(state["model"], model)


def _check_model(weights: object, model: nn.Module) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = (
        {name: tuple(getattr(tensor, "shape", ())) for name, tensor in weights.items()}
        if isinstance(weights, Mapping)
        else {}
    )
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different:
        name = different[0]
        raise StateError(
            f"the state is of another model: {name} is {found.get(name, 'missing')} there and "
            f"{wanted.get(name, 'missing')} here"
        )
