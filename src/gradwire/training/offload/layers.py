"""A model's layers: which parameters travel together, and which modules read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gradwire.errors import SpecError, TensorError
from gradwire.training.methods.trained import strangers


@dataclass
class Layer:
    """Parameters that travel together.

    Attributes
    ----------
    name
        Of the module that they belong to: a layer, or a block such as a residual one; empty for the model.
    masters, replicas
        On the host and on the device, in one order.
    readers
        The replica's modules that own one of them.
    """

    name: str
    masters: list[nn.Parameter] = field(default_factory=list)
    replicas: list[nn.Parameter] = field(default_factory=list)
    readers: list[nn.Module] = field(default_factory=list)

    @property
    def weights(self) -> list[nn.Parameter]:
        """The masters with more than one dimension, which policies are about."""
        return [each for each in self.masters if each.dim() > 1]

    @property
    def count(self) -> int:
        """How many numbers travel."""
        return sum(each.numel() for each in self.masters)


def layers_of(model: nn.Module, replica: nn.Module, blocks: Sequence[str] = ()) -> list[Layer]:
    """Return the layers in the order of the model's modules, one for each module with parameters of its own.

    The parameters within each of ``blocks``, names of modules, are one layer. A parameter that several
    modules share belongs to the first. Raises ``SpecError`` for a block that isn't there.
    """
    modules, readers = (
        dict(model.named_modules(remove_duplicate=False)),
        dict(replica.named_modules(remove_duplicate=False)),
    )
    unknown = next((name for name in blocks if name not in modules), None)
    if unknown is not None:
        raise SpecError(f"a block must be the name of one of the model's modules, but {unknown!r} isn't")
    layers: dict[str, Layer] = {}
    homes: dict[nn.Parameter, Layer] = {}
    for name, module in modules.items():
        home = next((block for block in blocks if f"{name}.".startswith(f"{block}.")), name)
        replicas = dict(readers[name].named_parameters(recurse=False))
        for own, master in module.named_parameters(recurse=False):
            if master not in homes:
                homes[master] = layers.setdefault(home, Layer(home))
                homes[master].masters.append(master)
                homes[master].replicas.append(replicas[own])
            if readers[name] not in homes[master].readers:
                homes[master].readers.append(readers[name])
    return [*layers.values()]


def check_masters(model: nn.Module) -> None:
    """Raise ``TensorError`` unless a model can be the master: it has float32 parameters on the CPU."""
    parameters = dict(model.named_parameters())
    if not parameters:
        raise TensorError("HostOffload wants a model with parameters, but this one has none")
    for name, each in parameters.items():
        if each.device.type != "cpu":
            raise TensorError(
                f"HostOffload keeps the master weights on the host, but {name} is on {each.device}; pass the "
                "model as it is before model.to(device), and name the device here"
            )
        if each.dtype != torch.float32:
            raise TensorError(
                f"the master weights must be float32, but {name} is {each.dtype}; pass model.float(), and "
                "use torch.autocast for a forward pass in half the precision"
            )


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ``SpecError`` unless an optimizer updates the model's parameters only."""
    found = strangers(optimizer, set(map(id, model.parameters())))
    if found:
        raise SpecError(
            "the optimizer must update the parameters of this model, but has one of shape "
            f"{tuple(found[0].shape)} that isn't among them; make it from model.parameters()"
        )
