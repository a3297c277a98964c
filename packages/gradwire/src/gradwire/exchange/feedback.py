"""Error feedback of one run: what its encodings lose, and the residual that keeps it.

A rank encodes an element at most once in a run: it sends its partial sum on, or publishes the finished one,
never both. So everything that it loses has one place, the element's own. Receivers add up, or adopt, what
they decode, and whatever is missing there is in the residual of the rank that encoded it. So, too, the norm
of what a rank's encodings lose is that of one difference per element, whatever the number of hops.
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

# The residual of one bucket: what it adds to the bucket, and the memory for what the run loses.


@dataclass
class Residual:
    """A residual on the host, which changes only after a run has succeeded.

    Attributes
    ----------
    values
        1-D contiguous float32 tensors which, one after the other, are as long as the bucket: one for each
        parameter, if parameters have codecs of their own.
    lost
        1-D contiguous float32, as long as the bucket: memory of its own for what a run loses.
    waits
        Whether the owner takes ``lost`` later, so that ``values`` stay as they are.
    finite
        Whether all sums of the last run were; the same on all ranks after an all-reduce.
    replaced
        Whether what the last run lost was kept, so that ``lost`` is what comes after ``values``.
    """

    values: Sequence[torch.Tensor]
    lost: torch.Tensor
    waits: bool = False
    finite: bool = False
    replaced: bool = False

    def replace(self) -> None:
        """Replace the values by what was lost, now or, if the residual waits, by its owner later."""
        self.replaced = True
        if not self.waits:
            for own, part in zip(self.values, self.parts(), strict=True):
                own.copy_(part)

    def heal(self) -> None:
        """Set values that are not finite to 0, unless the residual waits."""
        if not self.waits:
            for own in self.values:
                torch.nan_to_num(own, nan=0.0, posinf=0.0, neginf=0.0, out=own)

    def parts(self) -> Sequence[torch.Tensor]:
        """Return what was lost of each of the values."""
        return torch.split(self.lost, [own.numel() for own in self.values])


def check_residual(residual: torch.Tensor, tensor: torch.Tensor) -> None:
    """Raise ``TensorError`` unless ``residual``, on the CPU or beside it, can be that of ``tensor``."""
    check_chunk(residual, "residual", on_cuda=tensor.is_cuda)
    if device_of(residual) not in (CPU, device_of(tensor)):
        raise TensorError(
            f"residual must be on the CPU, or where the tensor is encoded, on {device_of(tensor)}, but is on "
            f"{device_of(residual)}; keep it there"
        )
    if residual.numel() != tensor.numel():
        raise TensorError(
            f"residual must have as many elements as the tensor, {tensor.numel()}, but has "
            f"{residual.numel()}; keep one for every bucket"
        )
    nbytes = tensor.nbytes
    if nbytes and abs(residual.data_ptr() - tensor.data_ptr()) < nbytes:
        raise TensorError("residual must have memory of its own, but shares the tensor's; use .clone()")


class ErrorFeedback:
    """No error feedback: a published value is replaced by what its receivers decode, and no loss is kept.

    ``finite`` tells, after a run, whether all final values that passed by are finite, and ``crossed_nbytes``
    how much has crossed a bus but for what was received.
    """

    ON_DEVICE: ClassVar[bool] = False
    """Whether the bucket is on a device, and payloads cross its bus."""

    def __init__(self, codec: Codec) -> None:
        self.finite, self.crossed_nbytes = True, 0
        self._codec = codec

    def begin(self, tensor: torch.Tensor) -> None:
        """Prepare the bucket; nothing of it has been encoded."""

    def encode(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the payload of ``x``, a view of ``out``, which has room for it."""
        return self._codec.encode(x, out)

    def encode_sum(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Return the payload of the finished sum ``x``, likewise."""
        return self._codec.of_sums.encode(x, out)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Note that ``elements``, which begin at ``start``, were sent on as ``payload``."""

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Let the sums ``elements``, which begin at ``start``, adopt what others decode, and finish them."""
        if self._codec.EXACT:
            self.finished(elements, start, ranks)
        else:
            self.received(payload, elements, start, ranks)

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:  # noqa: ARG002
        """Decode the sums ``elements``, which begin at ``start``, and finish them."""
        self.finite &= self._codec.decode_finished(payload, elements, ranks)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:  # noqa: ARG002 - for HostFeedback
        """Divide the sums ``elements``, which begin at ``start``, by ``ranks``, and look at the results."""
        self.finite &= _native.finish(elements, ranks)

    def commit(self) -> None:
        """Keep what was noted, after a run that has succeeded."""


class MeasuredFeedback(ErrorFeedback):
    """No error feedback, but ``norms`` gets the sums of squares of what a codec loses."""

    def __init__(self, codec: Codec, norms: Norms) -> None:
        super().__init__(codec)
        self._norms = norms

    def begin(self, tensor: torch.Tensor) -> None:
        """Measure this rank's own gradient."""
        self._norms.look(tensor)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Measure what the receiver will not get."""
        if not self._codec.EXACT:
            self._lose(payload, elements, start, 0)

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Measure what adopting takes away."""
        if self._codec.EXACT:
            self.finished(elements, start, ranks)
        else:
            self.finite &= self._lose(payload, elements, start, ranks)

    def _lose(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> bool:
        """Return whether all that was adopted is finite; nothing is with 0 ``ranks``."""
        return self._norms.lose(self._codec, payload, elements, start, None, ranks)[1]


class HostFeedback(MeasuredFeedback):
    """Error feedback on the host: a residual is added first, and replaced by what was lost at the end.

    If anything is not finite then, the gradient is of no use. The step that it belongs to is lost (a gradient
    scaler skips it), and the residual stays for the next one. After an all-reduce every rank has the same
    bits, so all of them decide alike.

    What is done for the residual measures what is lost, too, in the same passes; what was encoded and what is
    decoded is not measured, because nothing is lost for good.

    Parameters
    ----------
    codec
        What elements are encoded with.
    residual
        As long as the bucket; only ``commit`` changes its values.
    norms
        Where sums of squares are added up.
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
        """Add the old residual to the bucket; what an earlier run noted does not count any more."""
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
        """Make what was lost the new residual, or leave the old one, whose values are finite after this."""
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
        way = self._codec, payload, elements, start, self._lost[start:stop]
        squares, finite = self._norms.lose(*way, ranks)
        self._lost_finite &= math.isfinite(squares)
        return finite


class FeedbackFactory:
    """Makes the error feedback of one run after the other, and keeps the memory for it."""

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
    """Yield what lies between the noted ranges, of all ``count`` elements."""
    end = 0
    for start, stop in sorted(noted):
        if start > end:
            yield end, start
        end = max(end, stop)
    if end < count:
        yield end, count


def is_finite(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether all values are finite, also once rounded to ``dtype``; in one pass, without a copy."""
    if tensor.numel() == 0:
        return True
    device = device_of(tensor)
    if device is not CPU:
        told = device.pinned(1)

        def tell() -> None:
            told.copy_(tensor.to(dtype).isfinite().all().float(), non_blocking=True)

        device.launch(tell, [tensor], [told])
        device.event().wait()
        return float(told) == 1.0
    ends = torch.stack(torch.aminmax(tensor))  # they show an infinity, and a NaN too
    return bool(ends.to(dtype).isfinite().all())
