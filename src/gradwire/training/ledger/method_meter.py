"""The meter of a training method, which knows its parameters by their numbers in one flat gradient."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.exchange.division import AllReduces, divided
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.ledger.lost_meter import LostMeter, Measure
from gradwire.training.ledger.shares import Layout


class MethodMeter(LostMeter):
    """Measures what is lost of the trainable parameters of a model, in the order of ``FlatGradients``.

    The parameter groups of ``optimizer`` belong together; all parameters of a bucket do where there is none.
    ``LostMeter`` describes the others.
    """

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        ledger: Ledger | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__(exchange.link.rank, exchange.plan, (), ledger, strict)
        self._model, self._optimizer = model, optimizer
        self._finished = 0
        self.follow([each for each in model.parameters() if each.requires_grad])

    def follow(self, parameters: Sequence[Parameter]) -> None:
        """Measure these parameters of the model from the next step on, in this order."""
        names = {id(each): name for name, each in self._model.named_parameters()}
        self._names = [names[id(each)] for each in parameters]
        self._parameters, self._counts = parameters, [each.numel() for each in parameters]
        self._group_of = _groups(self._optimizer)
        self._layouts: dict[range, Layout] = {}

    def names(self, parameters: range) -> list[str]:
        """Return what these parameters are called."""
        return self._names[parameters.start : parameters.stop]

    @property
    def all(self) -> range:
        """The numbers of all parameters."""
        return range(len(self._counts))

    def divided(self, exchange: Exchange, parameters: range) -> AllReduces:
        """Return what exchanges buckets of these parameters, with the codecs that the plan has for them."""
        counts = self._counts[parameters.start : parameters.stop]
        return divided(exchange, self.names(parameters), counts)

    def measure(self, step: int, parameters: range) -> Measure:
        """Return what measures an exchange of these parameters in a step, where that is measured."""
        return Measure(self._layout(parameters) if self.measures(step) else None)

    def finish(self, step: int, measure: Measure, exchange: Exchange) -> ExchangeCost:
        """Note what an exchange has measured; the last one of a step lets strict ranks agree.

        Returns what agreeing cost. Raises ``ExchangeError``.
        """
        if measure.layout is None:
            return ExchangeCost()
        self.note(measure)
        self._finished += len(measure.layout.names)
        if self._finished < len(self._counts):
            return ExchangeCost()
        self._finished = 0
        if not self.agrees(step):
            return ExchangeCost()
        accounting, measure.verdict = self.agree(exchange)
        return accounting

    def _layout(self, parameters: range) -> Layout:
        if parameters not in self._layouts:
            part = slice(parameters.start, parameters.stop)
            alone = ("bucket", parameters.start)
            groups = tuple(self._group_of.get(each, alone) for each in self._parameters[part])
            names, counts = tuple(self.names(parameters)), tuple(self._counts[part])
            self._layouts[parameters] = Layout(names, counts, groups)
        return self._layouts[parameters]


def _groups(optimizer: torch.optim.Optimizer | None) -> dict[torch.Tensor, Hashable]:
    if optimizer is None:
        return {}
    return {
        each: ("group", number)
        for number, group in enumerate(optimizer.param_groups)
        for each in group["params"]
    }
