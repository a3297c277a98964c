"""What the encodings of one walk lose: the values that a lossy codec changes, and who keeps the difference.

A rank encodes an element at most once in a walk: it sends its partial sum on, or publishes the finished one,
never both. So everything that it loses has one place, the element's own. Receivers add up, or adopt, what
they decode, and whatever is missing there is in the residual of the rank that encoded it. So, too, the norm
of what a rank's encodings lose is that of one difference per element, whatever the number of hops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch

from gradwire.codecs import Codec
from gradwire.codecs.base import check_chunk
from gradwire.errors import TensorError
from gradwire.exchange.norms import Norms


class Losses:
    """Nobody keeps what is lost; a published value is replaced by what its receivers decode.

    ``finite`` tells, after a walk, whether all final values that passed by are finite.
    """

    ON_DEVICE: ClassVar[bool] = False
    """Whether the bucket is on a device, and payloads cross its bus."""

    def __init__(self, codec: Codec) -> None:
        self.finite = True
        self._codec = codec

    def begin(self, tensor: torch.Tensor) -> None:
        """Prepare the bucket; nothing of it has been encoded."""

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Note that ``elements``, which begin at ``start``, were sent on as ``payload``."""

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:  # noqa: ARG002
        """Let ``elements``, which begin at ``start``, adopt what others decode from ``payload``."""
        if not self._codec.EXACT:
            self._codec.decode(payload, elements)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:  # noqa: ARG002
        """Divide the sums ``elements``, which begin at ``start``, by ``ranks``, and look at the final values.

        Both while a cache holds them.
        """
        if ranks > 1:
            elements.div_(ranks)
        self.finite = self.finite and is_finite(elements)

    def commit(self) -> None:
        """Keep what was noted; the walk has succeeded."""


class MeasuredLosses(Losses):
    """Nobody keeps what is lost by a codec that is not exact, but it is measured.

    Sums of squares are added up in ``norms``. ``scratch`` is 1-D float32, as long as a segment: what is lost
    is looked at while a cache holds it, and forgotten.
    """

    def __init__(self, codec: Codec, norms: Norms, scratch: torch.Tensor) -> None:
        super().__init__(codec)
        self._norms = norms
        self._lost = scratch

    def begin(self, tensor: torch.Tensor) -> None:
        """Measure this rank's own gradient."""
        self._norms.look(tensor)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Measure what the receiver will not get."""
        if not self._codec.EXACT:
            lost = self._place(elements, start)
            self._codec.decode(payload, lost)
            self._compare(elements, lost, start)
            self._look_at(self._norms.subtract(elements, lost, start))

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        """Measure what adopting takes away."""
        if not self._codec.EXACT:
            lost = self._place(elements, start)
            self._codec.decode(payload, lost)
            self._compare(elements, lost, start)
            self._look_at(self._norms.adopt(elements, lost, start))

    def _place(self, elements: torch.Tensor, start: int) -> torch.Tensor:  # noqa: ARG002 - for KeptLosses
        """Return where to put what ``elements`` lose."""
        return self._lost[: elements.numel()]

    def _compare(self, elements: torch.Tensor, decoded: torch.Tensor, start: int) -> None:
        """Measure what ``elements`` were, and what others have of them."""
        self._norms.compare(elements, decoded, start)

    def _look_at(self, lost: float) -> None:
        """Note the sum of squares of what a segment has lost."""


class KeptLosses(MeasuredLosses):
    """A residual is added at the beginning, and replaced by what was lost at the end.

    Unless something is not finite then: nobody can use such a gradient, so the step that it belongs to is
    lost (a gradient scaler skips it), and the residual stays for the next one. After an all-reduce every rank
    has the same bits, so all of them decide alike.

    Parameters
    ----------
    codec
        What elements are encoded with.
    residual
        1-D contiguous float32, as long as the bucket; only ``commit`` changes it.
    scratch
        The same kind of memory, for what is lost until then.
    norms
        Where sums of squares are added up. What is done for the residual measures, too, in the same passes.
    """

    def __init__(
        self, codec: Codec, residual: torch.Tensor, scratch: torch.Tensor, norms: Norms | None = None
    ) -> None:
        super().__init__(codec, Norms([0, residual.numel()]) if norms is None else norms, scratch)
        self._residual = residual
        self._tensor = residual
        self._noted: list[tuple[int, int]] = []
        self._finished: list[tuple[int, int]] = []

    def begin(self, tensor: torch.Tensor) -> None:
        """Add the old residual to the bucket; what an earlier walk noted does not count any more."""
        self._tensor, self._noted, self._finished, self.finite = tensor, [], [], True
        self._norms.add(tensor, self._residual)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:
        """Finish sums, and note where they were."""
        self._finished.append((start, start + elements.numel()))
        super().finished(elements, start, ranks)

    def commit(self) -> None:
        """Make what was lost the new residual, or leave the old one, whose values are finite after this."""
        unseen = _gaps(self._finished, self._tensor.numel())
        self.finite = self.finite and all(is_finite(self._tensor[start:stop]) for start, stop in unseen)
        if self.finite:
            for start, stop in _gaps(self._noted, self._lost.numel()):
                self._lost[start:stop].zero_()
            self._residual.copy_(self._lost)
        else:
            torch.nan_to_num(self._residual, nan=0.0, posinf=0.0, neginf=0.0, out=self._residual)

    def _compare(self, elements: torch.Tensor, decoded: torch.Tensor, start: int) -> None:
        """Spare this: what is lost is not lost for good, so nobody asks what kind of loss it is."""

    def _place(self, elements: torch.Tensor, start: int) -> torch.Tensor:
        stop = start + elements.numel()
        self._noted.append((start, stop))
        return self._lost[start:stop]

    def _look_at(self, lost: float) -> None:
        self.finite = self.finite and math.isfinite(lost)


class Feedback:
    """Chooses who notes what one walk after the other loses, and keeps the memory for it.

    At most ``segment_count`` elements are encoded at once.
    """

    def __init__(self, segment_count: int) -> None:
        self._segment_count = segment_count
        self._scratch = torch.empty(0, dtype=torch.float32, device="cpu")

    def of(self, codec: Codec, residual: torch.Tensor | None, norms: Norms | None) -> Losses:
        """Return the losses of a walk with this codec that keeps or measures them, or neither."""
        if norms is not None:
            norms.clear()
        if residual is not None:
            return KeptLosses(codec, residual.detach(), self._memory(residual.numel()), norms)
        if norms is None or codec.EXACT:
            return Losses(codec)
        return MeasuredLosses(codec, norms, self._memory(min(norms.count, self._segment_count)))

    def _memory(self, count: int) -> torch.Tensor:
        if self._scratch.numel() < count:
            self._scratch = torch.empty(count, dtype=torch.float32, device="cpu")
        return self._scratch[:count]


def _gaps(noted: list[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
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
    ends = torch.stack(torch.aminmax(tensor))  # they show an infinity, and a NaN too
    return bool(ends.to(dtype).isfinite().all())


def check_residual(residual: torch.Tensor, tensor: torch.Tensor) -> None:
    """Raise ``TensorError`` unless ``residual`` can be the residual of ``tensor``."""
    check_chunk(residual, "residual")
    if residual.numel() != tensor.numel():
        raise TensorError(
            f"residual must have as many elements as the tensor, {tensor.numel()}, but has "
            f"{residual.numel()}; keep one for every bucket"
        )
    nbytes = tensor.nbytes
    if nbytes and abs(residual.data_ptr() - tensor.data_ptr()) < nbytes:
        raise TensorError("residual must have memory of its own, but shares the tensor's; use .clone()")
