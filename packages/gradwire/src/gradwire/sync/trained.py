"""The parameters that a method trains, kept in step with a model that is unfrozen piece by piece.

An optimizer steps every parameter that has a gradient. So its parameters must be the model's, and those
without a place in the flat gradient must have no ``.grad``: each rank would step them with its own.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from gradwire.devices import device_of
from gradwire.errors import SpecError, shown
from gradwire.sync.flat import FlatGradients, trainable
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.residual import GRADIENT, Residuals, write

# The parameters and buffers that all replicas share: those that DDP doesn't leave to each rank.


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


class Trained:
    """The trained parameters of one model on one rank.

    A parameter is trained from the step on in which it first asks for a gradient, and keeps its place when it
    is frozen again. ``parameters`` has each once, in the order of the model. The optimizer is None at a
    worker of a server; ``method`` is what errors call the method.

    Raises ``SpecError`` for what no method can train, and for an optimizer that has other parameters than the
    model's, or whose ``step`` needs a closure; and ``TensorError`` for the model's parameters.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, method: str) -> None:
        check_model(model, method)
        if optimizer is not None:
            check_optimizer(optimizer, method)
        import_all_of_torch()
        self._model, self._optimizer, self._method = model, optimizer, method
        self._every = list(model.parameters())
        self._known = set(map(id, self._every))
        self.parameters = trainable(self._every)
        self._sort()
        self._look_for_strangers()

    def grown(self) -> bool:
        """Return whether a parameter asks for a gradient that has no place yet. Raises ``SpecError``."""
        self._look_for_strangers()
        return any(parameter.requires_grad for parameter in self._frozen)

    def grow(self) -> list[Parameter]:
        """Take in all that ask for a gradient; return the newcomers, in the order of the model."""
        _check_shared(self._model, self._method)
        self._every = list(dict.fromkeys(self._model.parameters()))
        self._known.update(map(id, self._every))
        before = self._own
        self.parameters = [each for each in self._every if each.requires_grad or id(each) in before]
        self._sort()
        return [each for each in self.parameters if id(each) not in before]

    def shield(self) -> None:
        """Let the optimizer find no gradient of this rank's own: of a parameter that has no place here."""
        for parameter in self._held():
            if parameter.grad is not None and id(parameter) not in self._own:
                parameter.grad = None

    def layout(self) -> str:
        """Return which of the model's parameters are trained; equal on ranks that train alike."""
        return str([(at, tuple(each.shape)) for at, each in enumerate(self._every) if id(each) in self._own])

    def _look_for_strangers(self) -> None:
        """Notice what the model has got since, by the optimizer's parameters. Raises ``SpecError``."""
        found = [] if self._optimizer is None else strangers(self._optimizer, self._known)
        if not found:
            return
        self._every = list(dict.fromkeys(self._model.parameters()))
        self._known.update(map(id, self._every))
        self._sort()
        foreign = [tuple(each.shape) for each in found if id(each) not in self._known]
        if foreign:
            raise SpecError(
                f"the optimizer of a {self._method} holds its model's parameters only, but {len(foreign)} of "
                f"these (the first of shape {foreign[0]}) are not the model's, so their gradients are not "
                "averaged; make it from model.parameters(), and put all that is trained into one model"
            )

    def _held(self) -> Iterator[Parameter]:
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                yield from group["params"]

    def _sort(self) -> None:
        self._own = set(map(id, self.parameters))
        self._frozen = [each for each in self._every if id(each) not in self._own]


def relaid(
    residuals: Residuals, gradients: FlatGradients, before: FlatGradients | None = None
) -> torch.Tensor | None:
    """Return the residual of ``gradients``; what had a place in those of ``before`` keeps its own."""
    count = gradients.buffer.numel()
    beside = gradients.buffer
    old = residuals.of(GRADIENT, count if before is None else before.buffer.numel(), beside)
    if old is None or before is None:
        return old
    places = {id(each): place for place, each in enumerate(before.parameters)}
    new = device_of(old).zeros(count)
    for number, each in enumerate(gradients.parameters):
        if id(each) in places:
            write(gradients.part(number, new), before.part(places[id(each)], old))
    residuals.replace(GRADIENT, new)
    return new


def strangers(optimizer: torch.optim.Optimizer, known: Collection[int]) -> list[Parameter]:
    """Return the parameters of an optimizer whose ids are not among these."""
    held = (each for group in optimizer.param_groups for each in group["params"])
    return [each for each in held if id(each) not in known]


def import_all_of_torch() -> None:
    """Let torch import now what its first optimizer does, which takes seconds: peers would wait later."""
    importlib.import_module("torch._dynamo")


REPLICATE = "torch.distributed._composable.replicate"
"""The module of torch's composable ``replicate``, which makes a DDP that the model does not show."""


def is_replicated(model: object) -> bool:
    """Return whether ``replicate`` averages the gradients of a model."""
    return any(each.__module__ == REPLICATE for each in type(model).__mro__)


def check_model(model: object, method: str) -> None:
    """Raise ``SpecError`` for no module, and for a model whose gradients somebody else averages."""
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"a {method} trains a torch.nn.Module, but got {shown(model)}; give it the model, and the "
            "optimizer after it"
        )
    _check_shared(model, method)
    for name, module in model.named_modules():
        if is_replicated(module):
            raise SpecError(
                f"a {method} averages gradients itself, but {REPLICATE} has changed {name or 'the model'}, "
                "so that DDP would average them, too; leave replicate out"
            )
        if isinstance(module, DistributedDataParallel):
            what = f"its {name}" if name else "this one"
            raise SpecError(
                f"a {method} averages gradients itself, but {what} is a DistributedDataParallel, whose own "
                f"all-reduce would run, too; give {method} the module inside (model.module) and call that in "
                "the loss, or keep DDP and use gradwire.attach(model)"
            )


def _check_shared(model: nn.Module, method: str) -> None:
    apart = [name for name, each in own_parameters(model).items() if each.requires_grad]
    if apart:
        raise SpecError(
            f"a {method} averages the gradients of all trainable parameters, but the model tells DDP to "
            f"ignore {apart[0]}, which each rank trains for itself; freeze it, or wrap the model in "
            "DistributedDataParallel and use gradwire.attach(model)"
        )


def check_optimizer(optimizer: object, method: str) -> None:
    """Raise ``SpecError`` for what is no optimizer, and for one whose ``step`` needs a closure."""
    step = getattr(type(optimizer), "step", None)
    if not callable(step) or not hasattr(optimizer, "param_groups"):
        raise SpecError(
            f"a {method} expects an optimizer of torch.optim, but got {shown(optimizer)}; make one, for "
            "example torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    closure = inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SpecError(
            f"a {method} calls the optimizer's step once per averaged gradient, but that of "
            f"{type(optimizer).__name__} needs a closure to compute others; use an optimizer without one"
        )


def check_extras(method: str, ledger: object, strict: object) -> None:
    """Raise ``SpecError`` for a ledger or a ``strict`` of another type."""
    if ledger is not None and not isinstance(ledger, Ledger):
        raise SpecError(f"the ledger of {method} must be a gradwire.Ledger or None, but is {shown(ledger)}")
    if not isinstance(strict, bool):
        raise SpecError(f"strict must be True or False in {method}, but is {shown(strict)}")
