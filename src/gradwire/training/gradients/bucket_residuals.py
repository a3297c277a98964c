"""The residuals of one bucket of DDP's, from its exchange to the end of the backward pass.

They are those of its parameters, one after the other, for DDP cuts buckets anew. What an exchange lost
becomes theirs only when all buckets of the pass are averaged and finite: otherwise the step is nobody's (a
``GradScaler`` skips it, an error ends it), and the next one begins with what was there before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.exchange.feedback import is_finite

_FEW = 256


class BucketResiduals:
    """What the parameters of a bucket add to it and get back from it.

    ``residuals`` are those of the parameters, in their order in the bucket, 1-D float32; empty where the plan
    keeps none. Only ``keep`` changes them.
    """

    def __init__(self, residuals: Sequence[torch.Tensor]) -> None:
        self._residuals = residuals
        self._waiting: list[bool] = []
        self._lost: torch.Tensor | None = None
        self._usable = True

    def lend(self, values: torch.Tensor) -> torch.Tensor | None:
        """Return what ``Exchange.all_reduce`` adds to ``values``, the bucket, and changes; None without any.

        It is 0 for parameters whose gradients are all 0: where no rank has used a parameter, DDP throws its
        average away, so its residual waits for another step.
        """
        if not self._residuals:
            return None
        gradients = torch.split(values, [own.numel() for own in self._residuals])
        self._waiting = [is_zero(gradient) for gradient in gradients]
        self._lost = torch.cat(
            [
                torch.zeros_like(own) if waits else own
                for own, waits in zip(self._residuals, self._waiting, strict=True)
            ]
        )
        return self._lost

    def note(self, average: torch.Tensor, dtype: torch.dtype) -> None:
        """Note whether the average, the same on all ranks, can be used once it is rounded to ``dtype``."""
        self._usable = self._lost is None or is_finite(average, dtype)

    @property
    def usable(self) -> bool:
        """Whether the average was finite; where no residual is kept it does not matter."""
        return self._usable

    def keep(self) -> None:
        """Let the residuals be what was lost; those that waited have it added."""
        if self._lost is None:
            return
        parts = torch.split(self._lost, [own.numel() for own in self._residuals])
        for own, waits, part in zip(self._residuals, self._waiting, parts, strict=True):
            own.copy_(own + part if waits else part)
        self._lost = None


def is_zero(gradient: torch.Tensor) -> bool:
    """Return whether all values are 0; the first few tell for nearly every gradient that is used."""
    rest = gradient[_FEW:]
    if bool(gradient[:_FEW].any()):
        return False
    return rest.numel() == 0 or all(end == 0 for end in torch.aminmax(rest))  # several times as fast as any
