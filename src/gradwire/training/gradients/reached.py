"""Which parameters a step's backward passes have reached, on this rank and on any rank.

The rule is DDP's with ``find_unused_parameters``: where some ranks reach a parameter, the others count as 0
in its average; where none does, it has no gradient, so that no optimizer touches it.

A rank cannot know of the others, but it need not ask in every step. A parameter that nobody has reached is
averaged to 0, for every codec decodes zeros to zeros, and averages have the same bits on all ranks. So all
of them see alike where there is a question, and only then they exchange one number per such parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from gradwire.costs import ExchangeCost
from gradwire.devices import device_of
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.training.gradients.flat import FlatGradients


class Reach:
    """One step's: made when backward has ended on this rank, and complete when ``agree`` has returned.

    ``gradients`` are those of the step, collected. ``own`` are the numbers of the parameters that this rank
    has not reached, ``absent`` those that no rank has, empty before ``agree``; a checkpoint may tell both.
    """

    def __init__(
        self, gradients: FlatGradients, own: Iterable[int] | None = None, absent: Iterable[int] = ()
    ) -> None:
        self._gradients = gradients
        self.own = frozenset(gradients.unreached() if own is None else own)
        self.absent = frozenset(absent)

    def parts(
        self, residual: torch.Tensor | None, numbers: Iterable[int] | None = None
    ) -> list[torch.Tensor]:
        """Return the parts of a whole gradient's residual that wait, of all parameters or these numbers."""
        if residual is None:
            return []
        among = self.own if numbers is None else self.own.intersection(numbers)
        return [self._gradients.part(each, residual) for each in sorted(among)]

    def agree(self, exchange: Exchange) -> ExchangeCost:
        """Learn what no rank has reached, once all of the gradient is averaged; return what that cost.

        All ranks call it at the same place between their exchanges. Raises ``ExchangeError``.
        """
        asked = self._gradients.silent()
        if not asked:
            return ExchangeCost()
        reached = self.told(asked)
        accounting = Exchange(exchange.link, Plan()).all_reduce(reached, average=False)
        self._hear(asked, reached)
        return _overhead(accounting)

    def send_up(self, exchange: Exchange) -> ExchangeCost:
        """Do what ``agree`` does by the reduce half of a star: for its rank 0, who is the one to step."""
        every = range(len(self._gradients.parameters))
        reached = self.told(every)
        accounting = Exchange(exchange.link, Plan(algorithm="star")).reduce(reached)
        self._hear(every, reached)
        return _overhead(accounting)

    def agree_on_all(self, exchange: Exchange, beside: torch.Tensor) -> ExchangeCost:
        """Do what ``agree`` does where a rank has no averages of all parameters; sum ``beside`` on the way.

        ``beside`` is 1-D float32 on the CPU. It is replaced by its sum over all ranks.
        """
        every = range(len(self._gradients.parameters))
        told = torch.cat([beside, self.told(every)])
        accounting = Exchange(exchange.link, Plan()).all_reduce(told, average=False)
        beside.copy_(told[: beside.numel()])
        self._hear(every, told[beside.numel() :])
        return _overhead(accounting)

    def told(self, asked: Sequence[int]) -> torch.Tensor:
        """Return a 0 for each of these parameters that this rank has not reached, else a 1; float32."""
        return torch.tensor(
            [float(each not in self.own) for each in asked], dtype=torch.float32, device="cpu"
        )

    def _hear(self, asked: Sequence[int], reached: torch.Tensor) -> None:
        self.absent = frozenset(
            each for each, count in zip(asked, reached.tolist(), strict=True) if count == 0
        )


def _overhead(accounting: ExchangeCost) -> ExchangeCost:
    """Return what an exchange has cost that carried no float of a gradient."""
    accounting.raw_nbytes = 0
    return accounting


@contextmanager
def set_aside(parts: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let these parts of a residual be 0 within a ``with`` block, and add them again at its end.

    They are those of parameters that this rank has not reached: their residuals wait for a step that does.
    """
    waiting = [_taken_out(part) for part in parts]
    try:
        yield
    finally:
        for part, old in zip(parts, waiting, strict=True):
            device_of(part).launch(partial(part.add_, old), [old], [part])
        for part in parts[-1:]:
            device_of(part).event().wait()


def _taken_out(part: torch.Tensor) -> torch.Tensor:
    """Return a copy of these values, which become 0."""
    device = device_of(part)
    old = device.zeros(part.numel())

    def take_out() -> None:
        old.copy_(part)
        part.zero_()

    device.launch(take_out, [], [old, part])
    return old
