"""The model and optimizer of a training method: checks, and the parameters that the method trains.

An optimizer updates every parameter that has a gradient. So it may have only parameters of the model, and a
parameter outside the flat gradient must have no ``.grad``, because every rank would apply its own gradient.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Iterable

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, SpecError, shown
from gradwire.exchange import Exchange
from gradwire.log import level
from gradwire.sync.flat.gradients import checked, trainable
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.broadcast import broadcast_parameters, count_weights
from gradwire.sync.replicas.compare import differing, own_parameters


class TrainedParameters:
    """The trained parameters of one model on one rank, each once, in the model's order.

    A parameter is trained from the first step in which it requires a gradient. If it is frozen again, it
    stays in the flat gradient. A worker of a server has no optimizer; errors name the ``method``. Raises
    ``SpecError`` for a model or an optimizer that no method can train, and ``TensorError`` for unsupported
    parameters.
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
        """Return whether a parameter outside the flat gradient requires a gradient. Raises ``SpecError``."""
        self._look_for_strangers()
        return any(parameter.requires_grad for parameter in self._frozen)

    def newcomers(self) -> list[Parameter]:
        """Return the parameters outside the flat gradient that require a gradient, in the model's order."""
        _check_shared(self._model, self._method)
        self._list_every()
        return [each for each in self._frozen if each.requires_grad]

    def grow(self, newcomers: Iterable[Parameter]) -> None:
        """Train ``newcomers``, too. Raises ``TensorError``, and changes nothing, if they are unsupported."""
        joined = self._own.union(map(id, newcomers))
        self.parameters = checked(each for each in self._every if id(each) in joined)
        self._sort()

    def shield(self) -> None:
        """Set ``.grad`` of parameters outside the flat gradient to None, so that the optimizer skips them."""
        for parameter in [] if self._optimizer is None else strangers(self._optimizer, self._own):
            parameter.grad = None

    def layout(self, newcomers: Iterable[Parameter]) -> str:
        """Return the places and shapes of the trained parameters and newcomers, for comparing ranks."""
        joined = self._own.union(map(id, newcomers))
        return str([(at, tuple(each.shape)) for at, each in enumerate(self._every) if id(each) in joined])

    def _look_for_strangers(self) -> None:
        """Find parameters added to the optimizer. Raises ``SpecError`` if one of them isn't in the model."""
        found = [] if self._optimizer is None else strangers(self._optimizer, self._known)
        if not found:
            return
        self._list_every()
        foreign = [tuple(each.shape) for each in found if id(each) not in self._known]
        if foreign:
            raise SpecError(
                f"{self._method}: expected an optimizer of the model's parameters, got {len(foreign)} "
                f"other parameters (the first of shape {foreign[0]}), whose gradients are not averaged; "
                "create the optimizer from model.parameters(), with all trained modules in one model"
            )

    def _list_every(self) -> None:
        self._every = list(dict.fromkeys(self._model.parameters()))
        self._known.update(map(id, self._every))
        self._sort()

    def _sort(self) -> None:
        self._own = set(map(id, self.parameters))
        self._frozen = [each for each in self._every if id(each) not in self._own]


def welcome(trained: TrainedParameters, exchange: Exchange, ledger: Ledger | None) -> ExchangeCost:
    """Add all parameters that require a gradient to ``trained``, and copy rank 0's weights to the new ones.

    All ranks call this before the same step, while no other exchange is running. Raises ``ExchangeError``,
    including if ranks do not train the same parameters, and ``TensorError`` for unsupported parameters. If
    the exchange hasn't failed, ``trained`` is then unchanged, and the call can be repeated.
    """
    newcomers = trained.newcomers()
    remedy = "unfreeze the same parameters on all ranks, before the same step"
    try:
        different = differing(trained.layout(newcomers), exchange)
    except ExchangeError as error:  # another rank may run a different exchange
        own = exchange.link.name_of(exchange.link.rank)
        raise ExchangeError(
            f"{own}: {len(newcomers)} parameters were unfrozen on this rank, but the comparison with the "
            f"other ranks failed ({error}); {remedy}"
        ) from error
    if different is not None:
        raise ExchangeError(
            f"rank {exchange.link.rank}: expected the same trained parameters on all ranks, but those of "
            f"{different}; {remedy}"
        )
    trained.grow(newcomers)
    if not newcomers:
        return ExchangeCost()
    cost = broadcast_parameters(newcomers, exchange)
    count_weights(ledger, cost)
    return cost


def strangers(optimizer: torch.optim.Optimizer, known: Collection[int]) -> list[Parameter]:
    """Return the parameters of an optimizer whose ids are not in ``known``."""
    held = (each for group in optimizer.param_groups for each in group["params"])
    return [each for each in held if id(each) not in known]


def import_all_of_torch() -> None:
    """Import ``torch._dynamo`` now. Otherwise, the first optimizer imports it, and peers wait for seconds."""
    importlib.import_module("torch._dynamo")


REPLICATE = "torch.distributed._composable.replicate"
"""The module of torch's composable ``replicate``, which uses a DDP that is hidden from the model."""


def is_replicated(model: object) -> bool:
    """Return whether ``replicate`` averages the gradients of a model."""
    return any(each.__module__ == REPLICATE for each in type(model).__mro__)


def check_model(model: object, method: str) -> None:
    """Raise ``SpecError`` unless ``model`` is a module whose gradients nothing else averages."""
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"{method}: expected a torch.nn.Module, got {shown(model)}; pass the model, then the optimizer"
        )
    _check_shared(model, method)
    expected = f"{method}: expected a model without its own all-reduce, got"
    for name, module in model.named_modules():
        if is_replicated(module):
            where = name or "the model"
            raise SpecError(f"{expected} one with {REPLICATE} on {where}; remove replicate")
        if isinstance(module, DistributedDataParallel):
            what = f"one with a DistributedDataParallel as {name}" if name else "a DistributedDataParallel"
            raise SpecError(
                f"{expected} {what}; pass model.module, "
                "and call that module in the loss, or keep DDP and use gradwire.attach(model)"
            )


def _check_shared(model: nn.Module, method: str) -> None:
    apart = [name for name, each in own_parameters(model).items() if each.requires_grad]
    if apart:
        raise SpecError(
            f"{method}: expected trainable parameters that all ranks share, got {apart[0]}, which DDP is "
            "set to ignore; freeze this parameter, or wrap the model in DistributedDataParallel and use "
            "gradwire.attach(model)"
        )


def check_optimizer(optimizer: object, method: str) -> None:
    """Raise ``SpecError`` unless ``optimizer`` is an optimizer whose ``step`` needs no closure."""
    step = getattr(type(optimizer), "step", None)
    if not callable(step) or not hasattr(optimizer, "param_groups"):
        raise SpecError(
            f"{method}: expected an optimizer of torch.optim, got {shown(optimizer)}; create one, for "
            "example torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    closure = inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SpecError(
            f"{method}: expected an optimizer whose step needs no closure, got {type(optimizer).__name__}; "
            "use another optimizer, such as torch.optim.SGD"
        )


def check_extras(method: str, ledger: object, strict: object) -> None:
    """Raise ``SpecError`` for an invalid ledger, ``strict`` or ``GRADWIRE_LOG``."""
    if ledger is not None and not isinstance(ledger, Ledger):
        raise SpecError(
            f"{method}: expected a gradwire.Ledger or None for ledger, got {shown(ledger)}; pass "
            "gradwire.Ledger(rank)"
        )
    if not isinstance(strict, bool):
        raise SpecError(
            f"{method}: expected True or False for strict, got {shown(strict)}; pass True to raise LossyError"
        )
    level()
