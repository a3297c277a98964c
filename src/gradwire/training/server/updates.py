"""How a parameter server's weights change when a worker's gradient has come: at once, or once a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from gradwire.codecs import Identity
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.methods.schedule import in_force
from gradwire.training.methods.trained import Trained
from gradwire.training.server.clocks import Clocks

Schedule = Callable[[int], None]
"""Called with the number of a step, from 0, right before its gradient is applied: sets learning rates."""


class Updates(ABC):
    """Keeps one gradient per worker, which is applied as a whole or not at all.

    The clocks have counted a gradient before it is applied; workers are summed in the order given.

    Attributes
    ----------
    gradients
        One for each worker.
    absent
        The numbers of the parameters that the worker's backward pass did not reach, for each worker.
    """

    def __init__(
        self, trained: Trained, optimizer: torch.optim.Optimizer, clocks: Clocks, workers: Sequence[int]
    ) -> None:
        self.gradients = {rank: _flat(trained) for rank in workers}
        self.absent = dict.fromkeys(workers, frozenset[int]())
        self._trained, self._optimizer, self._clocks = trained, optimizer, clocks

    @abstractmethod
    def came(self, rank: int, schedule: Schedule) -> bool:
        """Record that the gradient of ``rank`` is complete; return whether the weights have changed."""


class AtOnce(Updates):
    """One update for every gradient as it comes, at a p-th of the learning rate over p workers.

    A p-th of the rate rather than of the gradient: that is the same for plain SGD, and p updates then move
    the weights about as far as one with the mean also under weight decay, and with optimizers such as Adam,
    whose updates do not grow with the gradient. Momentum fades once per update.
    """

    def came(self, rank: int, schedule: Schedule) -> bool:
        """Update the weights with it."""
        schedule(self._clocks.of(rank) - 1)
        self.gradients[rank].put()
        self.gradients[rank].attach(self.absent[rank])
        self._trained.shield()
        shares = [{"lr": group["lr"] / len(self.gradients)} for group in self._optimizer.param_groups]
        with in_force(shares, self._optimizer):
            self._optimizer.step()
        return True


class OnceARound(Updates):
    """One update with the mean of all workers' gradients, summed in the order of the ranks: PS-Sync."""

    def __init__(
        self, trained: Trained, optimizer: torch.optim.Optimizer, clocks: Clocks, workers: Sequence[int]
    ) -> None:
        super().__init__(trained, optimizer, clocks, workers)
        self._sum = _flat(trained)

    def came(self, rank: int, schedule: Schedule) -> bool:
        """Update the weights if it was the last of its round."""
        if not self._clocks.level:
            return False
        schedule(self._clocks.of(rank) - 1)
        self._sum.zero()
        total = self._sum.staged()
        for gradients in self.gradients.values():
            # The sum of an exchange, to the last bit, even where this thread flushes subnormals.
            Identity().decode_add(gradients.buffer.view(torch.uint8), total.floats())
        total.floats().div_(len(self.gradients))
        total.store()
        self._sum.attach(frozenset.intersection(*self.absent.values()))
        self._trained.shield()
        self._optimizer.step()
        return True


def _flat(trained: Trained) -> FlatGradients:
    return FlatGradients(trained.parameters, with_frozen=True)
