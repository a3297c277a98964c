"""Error feedback of one run: the encoding error, and the residual that carries it to the next step.

In a run, a rank encodes an element at most once: either its partial sum or the finished sum. Receivers add or
adopt the decoded value, and the difference is added to the residual of the rank that encoded it. So the
residual and the encoding error have one value per element, for any number of hops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire import _native
from gradwire.codecs import Codec
from gradwire.devices import CPU, Staged, device_of
from gradwire.exchange.norms import Norms


@dataclass
class Residual:
    """The residual of one bucket on the host, which changes only after a successful run.

    ``values`` are 1-D contiguous float32 tensors whose lengths add up to the bucket's: one tensor, or one for
    each parameter if parameters have their own codecs. ``lost`` is separate memory for a run's encoding
    error, of the bucket's length. If ``waits``, the owner stores ``lost`` in ``values`` later, so that a run
    doesn't change ``values``. After a run, ``finite`` says whether all sums were finite (the same on all
    ranks after an all-reduce), and ``replaced`` whether ``lost`` becomes the next residual.
    """

    values: Sequence[torch.Tensor]
    lost: torch.Tensor
    waits: bool = False
    finite: bool = False
    replaced: bool = False

    def replace(self) -> None:
        """Replace the values with the run's encoding error, unless ``waits`` is true."""
        self.replaced = True
        if not self.waits:
            for each, part in zip(self.values, self.parts(), strict=True):
                each.copy_(part)

    def heal(self) -> None:
        """Set non-finite values to 0, unless ``waits`` is true."""
        if not self.waits:
            for each in self.values:
                torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0, out=each)

    def parts(self) -> Sequence[torch.Tensor]:
        """Return the part of ``lost`` for each tensor in ``values``."""
        return torch.split(self.lost, [each.numel() for each in self.values])


@contextmanager
def waiting(residual: torch.Tensor, counts: Sequence[int]) -> Iterator[Residual]:
    """Yield a ``Residual`` for one run per codec; the tensor changes at the end, and only if all succeed."""
    staged = Staged(residual)
    values = staged.floats()
    found = Residual(torch.split(values, [*counts]), torch.empty_like(values), waits=True)
    yield found
    found.waits = False
    if found.replaced:
        found.replace()
    else:
        found.heal()
    staged.store().order()


Ranges = list[tuple[int, int]]
"""The starts and ends of ranges of a bucket's elements."""


class ErrorFeedback:
    """The base class, for runs without a residual: a rank adopts the decoded values of sums that it encodes.

    After a run, ``finite`` says whether all final values are finite, and ``crossed_nbytes`` is the number of
    bytes that crossed a device's bus, without received payloads.
    """

    ON_DEVICE: ClassVar[bool] = False
    """Whether the bucket is on a device, so that payloads cross its bus."""

    def __init__(self, codec: Codec) -> None:
        self.finite, self.crossed_nbytes = True, 0
        self._codec = codec

    def begin(self, tensor: torch.Tensor) -> None:
        """Prepare the bucket before any part of it is encoded."""

    def encode(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the payload of ``x`` to ``out``, which has room for it, and return it as a view."""
        return self._codec.encode(x, out)

    def encode_sum(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the payload of the finished sum ``x`` to ``out``, and return it as a view."""
        return self._codec.of_sums.encode(x, out)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Record that the partial sums ``elements``, from ``start`` on, were sent as ``payload``."""

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Replace the sums ``elements`` with the values that other ranks decode, and finish them."""
        if self._codec.EXACT:
            self.finished(elements, start, ranks)
        else:
            self.received(payload, elements, start, ranks)

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:  # noqa: ARG002
        """Decode ``payload`` to ``elements``, the sums from ``start`` on, and finish them."""
        self.finite &= self._codec.decode_finished(payload, elements, ranks)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:  # noqa: ARG002 - for HostFeedback
        """Divide the sums ``elements``, from ``start`` on, by ``ranks``, and check that they are finite."""
        self.finite &= _native.finish(elements, ranks)

    @property
    def receivers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """The tensors for the native engine's encoding error."""
        return None

    def ran(self, finished: Ranges, encoded: Ranges, finite: bool, lost_finite: bool) -> None:  # noqa: ARG002
        """Record a run of the native engine, which has finished and encoded values of these ranges."""
        self.finite &= finite

    @property
    def is_usable(self) -> bool:
        """Whether the encoding error can become the residual, as far as this feedback knows."""
        return True

    def finish_rest(self) -> None:
        """Finish the values that no action of the run has finished, before ``commit``."""

    def commit(self, *, keeps: bool = False) -> None:
        """Store the encoding error after a successful run, or, with ``keeps``, keep the old residual."""


class HostFeedback(ErrorFeedback):
    """Error feedback on the host: a residual is added first, and replaced by the encoding error at the end.

    If a value is not finite, the gradient is unusable: its step is discarded (a gradient scaler skips it),
    and the residual is kept for the next step. After an all-reduce, every rank has the same bits, so all
    ranks make the same decision. The passes over the residual also measure the error, but not the values
    before and after encoding. Only warnings need these values, and later steps make up for the error.

    Without a residual, the feedback only measures the encoding error, in ``norms``. Only ``commit`` changes
    the residual's values.
    """

    def __init__(self, codec: Codec, norms: Norms, residual: Residual | None = None) -> None:
        super().__init__(codec)
        self._norms, self._residual = norms, residual
        self._lost = None if residual is None else residual.lost
        self._noted: list[tuple[int, int]] = []
        self._finished: list[tuple[int, int]] = []
        self._lost_finite = True

    def begin(self, tensor: torch.Tensor) -> None:
        """Measure this rank's own gradient, and add the old residual to the bucket."""
        self._tensor, self._noted, self._finished = tensor, [], []
        self.finite = self._lost_finite = True
        if self._residual is None:
            self._norms.add_own(tensor)
            return
        start = 0
        for values in self._residual.values:
            self._norms.add(tensor, values, start)
            start += values.numel()

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Measure the encoding error of the sent values."""
        if not self._codec.EXACT:
            self._lose(payload, elements, start, 0)

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Measure the encoding error of the adopted values."""
        if self._codec.EXACT:
            self.finished(elements, start, ranks)
        else:
            self._finished.append((start, start + elements.numel()))
            self.finite &= self._lose(payload, elements, start, ranks)

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Decode and finish received sums, and record their range."""
        self._finished.append((start, start + elements.numel()))
        super().received(payload, elements, start, ranks)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:
        """Finish sums, and record their range."""
        self._finished.append((start, start + elements.numel()))
        super().finished(elements, start, ranks)

    @property
    def receivers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
        """The tensors for the native engine's encoding error."""
        return self._norms.borders, self._norms.sums[1:], self._lost

    def ran(self, finished: Ranges, encoded: Ranges, finite: bool, lost_finite: bool) -> None:
        """Record a run of the native engine, and the ranges that it finished and encoded."""
        super().ran(finished, encoded, finite, lost_finite)
        self._finished += finished
        if not self._codec.EXACT:
            self._noted += encoded
        self._lost_finite &= lost_finite

    @property
    def is_usable(self) -> bool:
        """Whether all sums and encoding errors are finite; also true without a residual."""
        return self._residual is None or (self.finite and self._lost_finite)

    def finish_rest(self) -> None:
        """Finish the partial sums of a reduce half."""
        if self._residual is not None:
            for start, stop in gaps(self._finished, self._tensor.numel()):
                self.finished(self._tensor[start:stop], start)

    def commit(self, *, keeps: bool = False) -> None:
        """Store the encoding error as the residual, or keep the old one with non-finite values set to 0."""
        if self._residual is None:
            return
        self._residual.finite = self.finite
        if self.is_usable and not keeps:
            lost = self._residual.lost
            for start, stop in gaps(self._noted, lost.numel()):
                lost[start:stop].zero_()
            self._residual.replace()
        else:
            self._residual.heal()

    def _lose(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> bool:
        """Measure the error; unless ``ranks`` is 0, adopt the values, and return whether all are finite."""
        stop = start + elements.numel()
        self._noted.append((start, stop))
        lost = None if self._lost is None else self._lost[start:stop]
        squares, finite = self._norms.lose(self._codec, payload, elements, start, lost, ranks)
        self._lost_finite &= math.isfinite(squares)
        return finite


class FeedbackFactory:
    """A factory of each run's error feedback, which reuses the memory for encoding errors."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.float32, device="cpu")

    def of(
        self, codec: Codec, residual: torch.Tensor | Residual | None, norms: Norms | None, start: int = 0
    ) -> ErrorFeedback:
        """Return the error feedback for values of one codec, which follow ``start`` other values of a run."""
        if norms is not None:
            norms.clear()
        if residual is None:
            return ErrorFeedback(codec) if norms is None or codec.EXACT else HostFeedback(codec, norms)
        if isinstance(residual, torch.Tensor):
            stop = start + residual.numel()
            if self._memory.numel() < stop:
                with torch.inference_mode(mode=False):  # reused outside of inference mode
                    self._memory = torch.empty(stop, dtype=torch.float32, device="cpu")
            residual = Residual([residual.detach()], self._memory[start:stop])
        return HostFeedback(codec, norms or Norms([0, residual.lost.numel()]), residual)


def commit_all(every: Sequence[ErrorFeedback]) -> None:
    """Commit the feedback of all parts of a bucket: if one part is unusable, all keep their residuals."""
    for each in every:
        each.finish_rest()
    keeps = not all(each.is_usable for each in every)
    for each in every:
        each.commit(keeps=keeps)


def gaps(noted: Ranges, count: int) -> Iterator[tuple[int, int]]:
    """Yield the gaps between the ranges in ``noted``, up to ``count`` elements."""
    end = 0
    for start, stop in sorted(noted):
        if start > end:
            yield end, start
        end = max(end, stop)
    if end < count:
        yield end, count


def is_finite(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether all values, rounded to ``dtype``, are finite; one pass over memory on the CPU."""
    if tensor.numel() == 0:
        return True
    device = device_of(tensor)
    if device is not CPU:
        answer = device.pinned(1)

        def look() -> None:
            answer.copy_(tensor.to(dtype).isfinite().all().float(), non_blocking=True)

        device.launch(look, [tensor], [answer])
        device.event().wait()
        return float(answer) == 1.0
    ends = torch.stack(torch.aminmax(tensor))  # infinite or NaN if any value is
    return bool(ends.to(dtype).isfinite().all())
