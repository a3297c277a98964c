"""Error feedback of one run: its encoding error, and the residual that keeps it for the next step.

A rank encodes an element at most once in a run: it sends its partial sum on, or publishes the finished one,
never both. So the residual has one value for each element. Receivers add, or adopt, the decoded value; the
difference is in the residual of the rank that encoded it. So the norm of a rank's encoding error is that of
one difference per element, for any number of hops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire import _native
from gradwire.codecs import Codec
from gradwire.codecs.base import check_chunk
from gradwire.devices import CPU, device_of
from gradwire.errors import TensorError
from gradwire.exchange.norms import Norms


@dataclass
class Residual:
    """The residual of one bucket on the host, which changes only after a run has succeeded.

    Attributes
    ----------
    values
        1-D contiguous float32 tensors that are together as long as the bucket: one for each parameter, if
        parameters have codecs of their own.
    lost
        1-D contiguous float32, as long as the bucket: memory of its own for the encoding error of a run.
    waits
        Whether the owner takes ``lost`` later, so that ``values`` stay as they are.
    finite
        Whether all sums of the last run were finite; the same on all ranks after an all-reduce.
    replaced
        Whether the last run's error was kept, so that ``lost`` is the next residual.
    """

    values: Sequence[torch.Tensor]
    lost: torch.Tensor
    waits: bool = False
    finite: bool = False
    replaced: bool = False

    def replace(self) -> None:
        """Replace the values by the error of the run, or leave that to the owner if the residual waits."""
        self.replaced = True
        if not self.waits:
            for each, part in zip(self.values, self.parts(), strict=True):
                each.copy_(part)

    def heal(self) -> None:
        """Set non-finite values to 0, unless the residual waits."""
        if not self.waits:
            for each in self.values:
                torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0, out=each)

    def parts(self) -> Sequence[torch.Tensor]:
        """Return the part of ``lost`` for each of the values."""
        return torch.split(self.lost, [each.numel() for each in self.values])


def check_residual(residual: torch.Tensor, tensor: torch.Tensor) -> None:
    """Raise ``TensorError`` unless ``residual``, on the CPU or beside ``tensor``, can be its residual."""
    check_chunk(residual, "residual", on_cuda=tensor.is_cuda)
    if device_of(residual) not in (CPU, device_of(tensor)):
        raise TensorError(
            f"expected a residual on the CPU, or on {device_of(tensor)} with the tensor, got one on "
            f"{device_of(residual)}; move it"
        )
    if residual.numel() != tensor.numel():
        raise TensorError(
            f"expected a residual of {tensor.numel()} elements, as the tensor has, got {residual.numel()}; "
            "keep one for every bucket"
        )
    nbytes = tensor.nbytes
    if nbytes and abs(residual.data_ptr() - tensor.data_ptr()) < nbytes:
        raise TensorError("expected a residual in memory of its own, got the tensor's; use .clone()")


class ErrorFeedback:
    """No error feedback: a rank that publishes a value adopts the decoded one, and keeps no error.

    After a run, ``finite`` is whether all final values are finite, and ``crossed_nbytes`` counts the bytes
    that crossed a bus, but for those of received payloads.
    """

    ON_DEVICE: ClassVar[bool] = False
    """Whether the bucket is on a device, and payloads cross its bus."""

    def __init__(self, codec: Codec) -> None:
        self.finite, self.crossed_nbytes = True, 0
        self._codec = codec

    def begin(self, tensor: torch.Tensor) -> None:
        """Prepare the bucket, before any of it is encoded."""

    def encode(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the payload of ``x``, a view of ``out``, which has room for it."""
        return self._codec.encode(x, out)

    def encode_sum(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the payload of the finished sum ``x``, likewise."""
        return self._codec.of_sums.encode(x, out)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Note that the partial sums ``elements``, which begin at ``start``, were sent as ``payload``."""

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Finish the sums ``elements``, which begin at ``start`` and adopt the values that others decode."""
        if self._codec.EXACT:
            self.finished(elements, start, ranks)
        else:
            self.received(payload, elements, start, ranks)

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:  # noqa: ARG002
        """Decode the sums ``elements``, which begin at ``start``, and finish them."""
        self.finite &= self._codec.decode_finished(payload, elements, ranks)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:  # noqa: ARG002 - for HostFeedback
        """Divide the sums ``elements``, which begin at ``start``, by ``ranks``, and check the results."""
        self.finite &= _native.finish(elements, ranks)

    def commit(self) -> None:
        """Keep the error, after a run that has succeeded."""


class MeasuredFeedback(ErrorFeedback):
    """No error feedback, but ``norms`` gets the sums of squares of the encoding error."""

    def __init__(self, codec: Codec, norms: Norms) -> None:
        super().__init__(codec)
        self._norms = norms

    def begin(self, tensor: torch.Tensor) -> None:
        """Measure this rank's own gradient."""
        self._norms.look(tensor)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Measure the error that the receiver will see."""
        if not self._codec.EXACT:
            self._lose(payload, elements, start, 0)

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Measure the error of the adopted values."""
        if self._codec.EXACT:
            self.finished(elements, start, ranks)
        else:
            self.finite &= self._lose(payload, elements, start, ranks)

    def _lose(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> bool:
        """Return whether all adopted values are finite; with 0 ``ranks`` none are adopted."""
        return self._norms.lose(self._codec, payload, elements, start, None, ranks)[1]


class HostFeedback(MeasuredFeedback):
    """Error feedback on the host: a residual is added first, and replaced by the encoding error at the end.

    If a value is not finite, the gradient is of no use: its step is discarded (a gradient scaler skips it),
    and the residual stays for the next one. After an all-reduce every rank has the same bits, so all of them
    decide alike. The passes for the residual also measure the error. They do not measure encoded and decoded
    values, because a residual loses nothing for good.

    Parameters
    ----------
    codec
        Encodes the elements.
    residual
        As long as the bucket; only ``commit`` changes its values.
    norms
        Gets the sums of squares.
    """

    def __init__(self, codec: Codec, residual: Residual, norms: Norms | None = None) -> None:
        self._lost = residual.lost
        super().__init__(codec, Norms([0, self._lost.numel()]) if norms is None else norms)
        self._residual = residual
        self._tensor = self._lost
        self._noted: list[tuple[int, int]] = []
        self._finished: list[tuple[int, int]] = []
        self._lost_finite = True

    def begin(self, tensor: torch.Tensor) -> None:
        """Add the old residual to the bucket, and forget an earlier run."""
        self._tensor, self._noted, self._finished = tensor, [], []
        self.finite = self._lost_finite = True
        start = 0
        for values in self._residual.values:
            self._norms.add(tensor, values, start)
            start += values.numel()

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Finish received sums, and note their range."""
        self._finished.append((start, start + elements.numel()))
        super().received(payload, elements, start, ranks)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:
        """Finish sums, and note their range."""
        self._finished.append((start, start + elements.numel()))
        super().finished(elements, start, ranks)

    def commit(self) -> None:
        """Make the error the new residual, or keep the old one and set its non-finite values to 0."""
        for start, stop in gaps(self._finished, self._tensor.numel()):
            self.finished(self._tensor[start:stop], start)
        self._residual.finite = self.finite
        if self.finite and self._lost_finite:
            for start, stop in gaps(self._noted, self._lost.numel()):
                self._lost[start:stop].zero_()
            self._residual.replace()
        else:
            self._residual.heal()

    def _lose(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> bool:
        stop = start + elements.numel()
        self._noted.append((start, stop))
        if ranks:
            self._finished.append((start, stop))
        lost = self._lost[start:stop]
        squares, finite = self._norms.lose(self._codec, payload, elements, start, lost, ranks)
        self._lost_finite &= math.isfinite(squares)
        return finite


class FeedbackFactory:
    """A maker of the error feedback of each run, with the memory for it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.float32, device="cpu")

    def of(
        self, codec: Codec, residual: torch.Tensor | Residual | None, norms: Norms | None
    ) -> ErrorFeedback:
        """Return the error feedback of a run with this codec."""
        if norms is not None:
            norms.clear()
        if residual is not None:
            return HostFeedback(codec, self._prepared(residual), norms)
        return ErrorFeedback(codec) if norms is None or codec.EXACT else MeasuredFeedback(codec, norms)

    def _prepared(self, residual: torch.Tensor | Residual) -> Residual:
        if isinstance(residual, Residual):
            return residual
        count = residual.numel()
        if self._memory.numel() < count:
            self._memory = torch.empty(count, dtype=torch.float32, device="cpu")
        return Residual([residual.detach()], self._memory[:count])


def gaps(noted: list[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between the noted ones, of all ``count`` elements."""
    end = 0
    for start, stop in sorted(noted):
        if start > end:
            yield end, start
        end = max(end, stop)
    if end < count:
        yield end, count


def is_finite(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether all values are finite, also when rounded to ``dtype``, in one pass without a copy."""
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
    ends = torch.stack(torch.aminmax(tensor))  # an infinity is one of them, and a NaN is both
    return bool(ends.to(dtype).isfinite().all())
