"""One rank's shard of the weights: exact masters, and the optimizer that steps them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

import torch
from torch.nn import Parameter

from gradwire.errors import SpecError
from gradwire.training.methods.trained import strangers

ELEMENTWISE = frozenset(
    (
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    )
)
"""The optimizers whose update of one weight depends on no other weight, so that any part can be stepped.

Adagrad's does, too, but its state is there before the first step, for whole parameters.
"""


class Shard:
    """The weights ``start`` up to ``stop`` of all parameters, one after the other.

    The optimizer holds them instead of the parameters from now on: one 1-D slice of each parameter that has
    weights in the shard, in the parameter's own group. So its state is that of the shard alone.

    Parameters
    ----------
    parameters
        All that are trained, in the order of the flat gradient.
    optimizer
        Theirs, without a state yet; those that are not trained leave it.

    Attributes
    ----------
    masters
        1-D float32 on the CPU: the exact weights; set by whoever knows them.
    """

    def __init__(
        self, parameters: Sequence[Parameter], optimizer: torch.optim.Optimizer, start: int, stop: int
    ) -> None:
        self.start, self.stop = start, stop
        self.masters = torch.zeros(stop - start, dtype=torch.float32, device="cpu")
        self._slices: dict[int, tuple[Parameter, int, int]] = {}
        starts = accumulate((each.numel() for each in parameters), initial=0)
        own = dict[int, Parameter]()
        for number, (each, first) in enumerate(zip(parameters, starts, strict=False)):
            low, high = max(first, start) - start, min(first + each.numel(), stop) - start
            if low < high:
                own[id(each)] = Parameter(self.masters[low:high])
                self._slices[number] = own[id(each)], low, high
        for group in optimizer.param_groups:
            group["params"] = [own[id(each)] for each in group["params"] if id(each) in own]

    def give(self, gradient: torch.Tensor, absent: Collection[int]) -> None:
        """Let the optimizer find the shard's gradient, and none of the parameters with these numbers."""
        for number, (part, low, high) in self._slices.items():
            part.grad = None if number in absent else gradient[low:high]

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ``SpecError`` if the optimizer has got parameters whose gradients nobody would average."""
        strange = strangers(optimizer, {id(part) for part, _, _ in self._slices.values()})
        if strange:
            raise SpecError(
                "the optimizer of a Sharded method holds this rank's share of the weights, but has got "
                f"{len(strange)} parameters since (the first of shape {tuple(strange[0].shape)}); make a new "
                "method and a new optimizer with them"
            )


def check_shardable(optimizer: torch.optim.Optimizer, parameters: Sequence[Parameter]) -> None:
    """Raise ``SpecError`` for an optimizer that cannot step a part of these weights by itself."""
    if type(optimizer) not in ELEMENTWISE:
        names = ", ".join(sorted(each.__name__ for each in ELEMENTWISE))
        raise SpecError(
            "a Sharded method steps each rank's part of the weights by itself, which needs an elementwise "
            f"optimizer ({names}), but this is a {type(optimizer).__name__}; use DSync with it"
        )
    if optimizer.state:
        raise SpecError(
            "a Sharded method wants an optimizer that has not stepped yet, for its state is divided among "
            "the ranks; make it anew, and load its own state afterwards"
        )
    if strangers(optimizer, set(map(id, parameters))):
        raise SpecError(
            "the optimizer of a Sharded method holds its model's parameters only, but has others; "
            "make it from model.parameters()"
        )
