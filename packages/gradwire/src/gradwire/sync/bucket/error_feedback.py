"""Error feedback of one bucket: the residual is added before the exchange, and replaced afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch

from gradwire.devices import CPU, device_of
from gradwire.exchange.feedback import Residual, is_finite


class BucketFeedback:
    """The error feedback of one bucket, from its exchange to its step's end; this base class does nothing.

    The training thread calls ``keep`` once all buckets of the step are averaged and ``usable``, that is,
    finite, which is the same on all ranks. The thread of the exchange calls the other methods.
    """

    usable = True

    def lend(self, values: torch.Tensor) -> torch.Tensor | Residual | None:  # noqa: ARG002
        """Return the residual, or None, for ``Exchange.run``, which replaces it with the encoding error."""
        return None

    def give_back(self) -> None:
        """Restore the residual after an exchange or its failure."""

    def note(self, average: torch.Tensor, dtype: torch.dtype) -> None:
        """Observe the average, before it is rounded to ``dtype``."""

    def keep(self) -> None:
        """Store the encoding error as the residual."""


NO_FEEDBACK = BucketFeedback()


class FlatResidual(BucketFeedback):
    """A bucket's part of the residual of a flat gradient, which the exchange changes in place.

    ``waiting`` has the residuals of parameters that this rank has not used; they wait for the next step that
    uses the parameters.
    """

    def __init__(self, residual: torch.Tensor | None, waiting: Sequence[torch.Tensor] = ()) -> None:
        self._residual, self._waiting = residual, waiting
        self._old: list[torch.Tensor] = []

    def lend(self, values: torch.Tensor) -> torch.Tensor | None:  # noqa: ARG002
        """Set the waiting parts of the residual to 0, and return the residual."""
        self._old = [_taken_out(part) for part in self._waiting]
        return self._residual

    def give_back(self) -> None:
        """Add the waiting parts to the residual again."""
        for part, old in zip(self._waiting, self._old, strict=True):
            device_of(part).launch(partial(part.add_, old), [old], [part])
        for part in self._waiting[-1:]:
            device_of(part).event().wait()


def _taken_out(part: torch.Tensor) -> torch.Tensor:
    device = device_of(part)
    old = device.zeros(part.numel())

    def copy() -> None:
        old.copy_(part)
        part.zero_()

    device.launch(copy, [], [old, part])
    return old


class BucketResiduals(BucketFeedback):
    """The residuals of one bucket, a tensor for each parameter because DDP may change its buckets.

    An exchange's encoding errors become residuals only if all buckets of the step are averaged and finite.
    Otherwise the step is discarded on all ranks, because a ``GradScaler`` skips it or an error ends it. The
    next step then begins with the old residuals.

    ``residuals`` has a 1-D float32 tensor for each parameter, in the parameters' order in the bucket, all on
    the CPU or all on the device that encodes the bucket. Only ``keep`` changes them. The sequence is empty if
    the plan keeps no residuals.
    """

    def __init__(self, residuals: Sequence[torch.Tensor]) -> None:
        self._residuals = residuals
        self._waiting: list[bool] = []
        self._used = list[torch.Tensor]()  # flags of used parameters, on a device; the host never reads them
        self._lost: torch.Tensor | Residual | None = None  # a tensor if a device encodes

    def lend(self, values: torch.Tensor) -> torch.Tensor | Residual | None:
        """Return the bucket's residual for ``Exchange.run``, or None if the plan keeps no residuals.

        The residual is 0 for parameters whose gradients are all 0. If no rank has used a parameter, DDP
        discards the parameter's average, so the parameter's residual waits for a later step.
        """
        if not self._residuals:
            return None
        gradients = torch.split(values, [own.numel() for own in self._residuals])
        device = device_of(values)
        if device is not CPU:
            self._lost = lost = device.zeros(values.numel())
            lend, used = partial(self._lend_there, lost, gradients), [values, *self._residuals]
            self._used = device.launch(lend, used, [lost])
            return lost
        self._waiting = [is_zero(gradient) for gradient in gradients]
        lent = [
            torch.zeros_like(own) if waits else own
            for own, waits in zip(self._residuals, self._waiting, strict=True)
        ]
        self._lost = Residual(lent, other_half(self._residuals), waits=True)
        return self._lost

    def note(self, average: torch.Tensor, dtype: torch.dtype) -> None:
        """Record whether the average, the same on all ranks, is finite once it is rounded to ``dtype``."""
        if isinstance(self._lost, Residual) and dtype is torch.float32:
            self.usable = self._lost.finite  # checked by the exchange
        else:
            self.usable = self._lost is None or is_finite(average, dtype)

    def keep(self) -> None:
        """Store the encoding errors as residuals, added to the residuals that waited."""
        lost, self._lost = self._lost, None
        if isinstance(lost, torch.Tensor):
            device_of(lost).launch(partial(self._keep_there, lost), [lost], self._residuals)
        elif lost is not None and lost.replaced:
            for own, waits, part in zip(self._residuals, self._waiting, lost.parts(), strict=True):
                if waits:
                    part += own
                own.data = part

    def _lend_there(self, lost: torch.Tensor, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Fill the bucket's residual, on a device, and return whether each parameter is used."""
        used = [gradient.any() for gradient in gradients]
        parts = torch.split(lost, [own.numel() for own in self._residuals])
        for is_used, own, part in zip(used, self._residuals, parts, strict=True):
            part.copy_(torch.where(is_used, own, 0.0))
        return used

    def _keep_there(self, lost: torch.Tensor) -> None:
        parts = torch.split(lost, [own.numel() for own in self._residuals])
        for is_used, own, part in zip(self._used, self._residuals, parts, strict=True):
            own.copy_(torch.where(is_used, part, own + part))


_FIRST = 256


def is_zero(gradient: torch.Tensor) -> bool:
    """Return whether all values are 0; the first few values decide for nearly every used gradient."""
    rest = gradient[_FIRST:]
    if bool(gradient[:_FIRST].any()):
        return False
    return rest.numel() == 0 or all(end == 0 for end in torch.aminmax(rest))  # faster than torch.any


def other_half(residuals: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return host memory for a bucket's encoding errors, of the total length of its residuals.

    The residuals usually fill one half of an allocation. The exchange writes the encoding errors to the other
    half, so the halves are swapped without a copy. If DDP has changed its buckets, the allocation is new.
    """
    count = sum(own.numel() for own in residuals)
    first = residuals[0]
    base, storage = first.storage_offset(), first.untyped_storage()
    places = accumulate([own.numel() for own in residuals[:-1]], initial=base)
    is_half = storage.nbytes() == 2 * count * first.itemsize and base in (0, count)
    if is_half and all(
        own.untyped_storage().data_ptr() == storage.data_ptr() and own.storage_offset() == place
        for own, place in zip(residuals, places, strict=True)
    ):
        return first.as_strided((count,), (1,), count - base)
    return torch.empty(2 * count, dtype=first.dtype, device="cpu")[:count]
