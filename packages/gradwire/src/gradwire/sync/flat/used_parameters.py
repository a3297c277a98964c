"""The parameters that a step's backward passes use, on this rank and on any rank.

The rule is that of DDP with ``find_unused_parameters``. If some ranks use a parameter, the other ranks'
gradients count as 0 in its average. If no rank uses the parameter, it has no gradient, so no optimizer
changes it.

The ranks need no exchange for this in most steps. Every codec decodes zeros to zeros, so the average of a
parameter that no rank has used is 0. Averages have the same bits on all ranks, so all ranks see the same
candidates: the parameters with an average of 0. If there are any, they exchange one number for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat.gradients import FlatGradients


class UsedParameters:
    """The used and unused parameters of one step, created after backward.

    Parameters
    ----------
    gradients
        The step's collected gradients.
    unused
        The numbers of the parameters that this rank has not used; by default, parameters without a gradient.
    absent
        The numbers of the parameters that no rank has used, from a checkpoint.

    Attributes
    ----------
    unused
        The parameters that this rank has not used.
    absent
        The parameters that no rank has used, once the ranks have agreed; before that, the passed numbers.
    """

    def __init__(
        self, gradients: FlatGradients, unused: Iterable[int] | None = None, absent: Iterable[int] = ()
    ) -> None:
        self._gradients = gradients
        self.unused = frozenset(gradients.unused() if unused is None else unused)
        self.absent = frozenset(absent)

    def agree(self, exchange: Exchange) -> ExchangeCost:
        """Set ``absent`` by an exchange, once the whole gradient is averaged, and return the cost.

        All ranks call this between the same two exchanges. Raises ``ExchangeError``.
        """
        candidates = self._gradients.all_zero()
        if not candidates:
            return ExchangeCost()
        users = self.flags(candidates)
        cost = Exchange(exchange.link, Plan()).all_reduce(users, average=False)
        self._set_absent(candidates, users)
        return _overhead(cost)

    def send_up(self, exchange: Exchange) -> ExchangeCost:
        """Count each parameter's users at rank 0, by the reduce half of a star; return the cost.

        ``absent`` is valid only on rank 0.
        """
        users = self.flags(self._all)
        cost = Exchange(exchange.link, Plan(algorithm="star")).reduce(users)
        self._set_absent(self._all, users)
        return _overhead(cost)

    def agree_on_all(self, exchange: Exchange, beside: torch.Tensor) -> ExchangeCost:
        """Set ``absent`` by an exchange over all parameters, for ranks that hold only some of the averages.

        ``beside``, 1-D float32 on the CPU, is replaced by its sum over all ranks in the same exchange.
        """
        values = torch.cat([beside, self.flags(self._all)])
        cost = Exchange(exchange.link, Plan()).all_reduce(values, average=False)
        beside.copy_(values[: beside.numel()])
        self._set_absent(self._all, values[beside.numel() :])
        return _overhead(cost)

    def flags(self, numbers: Sequence[int]) -> torch.Tensor:
        """Return a float32 tensor: 1 for every parameter of ``numbers`` that this rank has used, else 0."""
        flags = [float(each not in self.unused) for each in numbers]
        return torch.tensor(flags, dtype=torch.float32, device="cpu")

    @property
    def _all(self) -> range:
        return range(len(self._gradients.parameters))

    def _set_absent(self, numbers: Sequence[int], users: torch.Tensor) -> None:
        counts = zip(numbers, users.tolist(), strict=True)
        self.absent = frozenset(number for number, count in counts if count == 0)


def _overhead(cost: ExchangeCost) -> ExchangeCost:
    """Set ``raw_nbytes`` to 0, because the exchange carried no gradients, and return ``cost``."""
    cost.raw_nbytes = 0
    return cost
