"""The parameters and buffers that all replicas share: those that DDP doesn't leave to each rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import Parameter


def shared_parameters(model: nn.Module) -> list[Parameter]:
    """Return the parameters that all ranks share, frozen ones too, each once and in their order."""
    ignored = _ignored_names(model)
    return [each for name, each in model.named_parameters() if name not in ignored]


def own_parameters(model: nn.Module) -> dict[str, Parameter]:
    """Return the other parameters, each rank's own, by their names."""
    ignored = _ignored_names(model)
    return {name: each for name, each in model.named_parameters() if name in ignored}


def shared_buffers(model: nn.Module, wanted: Callable[[nn.Module, str], bool]) -> list[torch.Tensor]:
    """Return the buffers that all ranks share, each once and without empty ones.

    ``wanted`` decides by the module and the name in it.
    """
    ignored = _ignored_names(model)
    found = {
        id(buffer): buffer
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if wanted(module, name) and buffer.numel() and f"{prefix}.{name}".removeprefix(".") not in ignored
    }
    return list(found.values())


def _ignored_names(model: nn.Module) -> set[str]:
    """Return the names that a model tells DDP to leave alone, as TorchRec and PEFT do.

    DDP puts a dot before the names of the outermost module's own parameters in one place, not in others.
    """
    names = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    return {str(name).removeprefix(".") for name in names}
