"""Weights that the checkpoint of a server or a worker keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from gradwire.errors import GradwireError, StateError, shown


def check_weights(weights: Mapping[str, torch.Tensor] | None, model: nn.Module) -> None:
    """Raise ``StateError`` unless a state keeps weights, and they are of such a model."""
    wanted, found = (
        {name: f"{tuple(each.shape)} of {each.dtype}" for name, each in values.items()}
        for values in (model.state_dict(), weights or {})
    )
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different:
        name = different[0]
        raise StateError(
            f"the state is of another model: {shown(name)} is {found.get(name, 'missing')} there and "
            f"{wanted.get(name, 'missing')} here"
        )


@contextmanager
def restoring(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Give an optimizer its state back if what loads another one fails, and raise ``StateError`` then.

    What torch raises for a damaged state is torch's to choose, and it may have adopted some of it by then.
    """
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    try:
        yield
    except Exception as error:
        optimizer.__dict__.update(before)
        if isinstance(error, GradwireError):
            raise
        reason = shown(str(error) or type(error).__name__)
        raise StateError(f"the optimizer refuses the state: {reason}; make the same optimizer") from error
