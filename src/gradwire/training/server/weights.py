"""Weights that the checkpoint of a server or a worker keeps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from gradwire.errors import StateError


def check_weights(weights: Mapping[str, torch.Tensor] | None, model: nn.Module) -> None:
    """Raise ``StateError`` unless a state keeps weights, and they are of such a model."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in (weights or {}).items()}
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different:
        name = different[0]
        raise StateError(
            f"the state is of another model: {name} is {found.get(name, 'missing')} there and "
            f"{wanted.get(name, 'missing')} here"
        )
