"""Eager updates: a rank's own gradient stands in for the average that is still on its way.

While averages travel, a rank computes its next gradient at virtual weights: the masters, updated with its own
gradients of the steps that are under way, by the optimizer and at the learning rates of those steps. When an
average arrives, the masters take it instead. So what is stale in a gradient is only the difference between
one rank's gradient and the average, which is sampling noise of mean zero, where the paper's pipeline misses
the whole update. docs/pipe_corrections.md compares it with other corrections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter

from gradwire.exchange.feedback import is_finite
from gradwire.training.gradients.clip import clip
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.methods.schedule import in_force
from gradwire.training.pipe.correction import Correction
from gradwire.training.pipe.virtual_weights import VirtualWeights


@dataclass(slots=True)
class _Own:
    """One of this rank's own gradients; ``usable`` is None until somebody has looked."""

    gradients: FlatGradients
    scheduled: list[dict[str, Any]]
    absent: Collection[int]
    usable: bool | None = None


class Eager(Correction):
    """Virtual weights from the own gradients of the last ``pipeline - 1`` steps.

    It keeps as many copies of the gradient, and the memory of ``VirtualWeights``. A gradient with a value
    that is not finite makes no virtual update, and a parameter that backward has not reached has none.

    ``pipeline`` is K, from 2 up. Own gradients are clipped to the 2-norm ``max_norm``, each by its own;
    infinite means no clipping.
    """

    CORRECTS = True

    def __init__(
        self,
        parameters: Sequence[Parameter],
        optimizer: torch.optim.Optimizer,
        pipeline: int,
        max_norm: float,
    ) -> None:
        self._optimizer, self._max_norm = optimizer, max_norm
        self._free = [FlatGradients(parameters, with_frozen=True) for _ in range(pipeline - 1)]
        self._own: deque[_Own] = deque()
        self._virtual = VirtualWeights(parameters, optimizer)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Let the model hold the virtual weights."""
        self._look()
        if not any(own.usable for own in self._own):
            yield
            return
        with self._virtual.ahead(self._replay):
            yield

    def note(
        self, gradients: FlatGradients, scheduled: list[dict[str, Any]], absent: Collection[int] = ()
    ) -> None:
        """Copy the gradient, which the exchange is going to average in place."""
        if not self._free:
            self.keep(len(self._own) - 1)  # no step computes without that one's average any more
        own = self._free.pop()
        own.flat.copy_(gradients.flat)
        self._own.append(_Own(own, scheduled, absent))

    def keep(self, count: int) -> None:
        """Let the buffers of the others be used again."""
        while len(self._own) > count:
            self._free.append(self._own.popleft().gradients)

    def own(self) -> list[torch.Tensor]:
        """Return them as they are going to be used, clipped."""
        self._look()
        return [own.gradients.staged().floats().clone() for own in self._own]

    def resume(
        self,
        own: Sequence[torch.Tensor],
        scheduled: Sequence[list[dict[str, Any]]],
        absent: Sequence[Collection[int]],
    ) -> None:
        """Take them as they are: ``own`` returned them, clipped."""
        self.keep(0)
        for gradient, values, unreached in zip(own, scheduled, absent, strict=True):
            gradients = self._free.pop()
            gradients.buffer.copy_(gradient)
            gradients.put()
            self._own.append(_Own(gradients, values, unreached, is_finite(gradient)))

    def _look(self) -> None:
        """Clip what is new; here, and not in ``note``, since the exchange is under way by now."""
        for own in self._own:
            if own.usable is None:
                own.usable = is_finite(own.gradients.flat)
                clip(own.gradients.flat, self._max_norm)

    def _replay(self, step: Callable[[], object]) -> None:
        for own in self._own:
            if own.usable:
                own.gradients.attach(own.absent)
                with in_force(own.scheduled, self._optimizer):
                    step()
