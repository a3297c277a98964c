"""The request for the exchange of one bucket, and the bucket's values by codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch

from gradwire.codecs import Codec
from gradwire.codecs.base import check_chunk
from gradwire.costs import ExchangeCost
from gradwire.devices import CPU, device_of, on_host
from gradwire.errors import TensorError
from gradwire.exchange.feedback import Residual
from gradwire.exchange.norms import Norms
from gradwire.exchange.views import CodecPart, ParameterViews, SegmentCopies


class Half(Enum):
    """A whole all-reduce, or one of its halves. The value is the name of the ``Collective`` method."""

    ALL_REDUCE = "schedule"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """The request for one bucket's exchange, equal on all ranks except for ``residual`` and ``norms``.

    Attributes
    ----------
    half
        The half of the all-reduce; both halves by default. After ``REDUCE``, rank 0 has the sum with
        ``star``, and every owner has its chunk's sum with ``ring``. All other values are partial sums.
        ``BROADCAST`` starts at the owners.
    average
        Whether an all-reduce divides the sum by the number of ranks; a half never does.
    codec
        The bucket's codec; the plan's by default. Ignored with ``views``, which have their own codecs.
    views
        The bucket's parameters with their codecs; None if the bucket has one codec and no padding.
    residual
        Error feedback (Seide et al., Interspeech 2014): this rank's residual, of the bucket's length, in
        separate memory. It is added to the bucket before anything is sent, and then replaced with this rank's
        encoding error over all hops. The sum plus all ranks' residuals is the exact sum of the buckets and
        the old residuals, within float rounding. All ranks keep the old residual if the sum is non-finite,
        and after a failure. In a reduce, only ranks with a non-finite bucket keep their residuals. A
        ``Residual`` also provides the memory for the error.
    norms
        The object that receives sums of squares for each range of the bucket: of this rank's own values, and
        of this rank's encoding errors over all hops. Without a residual, measuring costs one decoding of each
        payload; with a residual, nothing. With ``views``, the ranges are the parameters.
    timeout_s
        The time without progress on any rank after which the exchange fails; the link's by default.
    """

    half: Half = Half.ALL_REDUCE
    average: bool = True
    codec: Codec | None = None
    views: ParameterViews | None = None
    residual: torch.Tensor | Residual | None = None
    norms: Norms | None = None
    timeout_s: float | None = None


Reducer = Callable[[torch.Tensor, BucketRequest], ExchangeCost]
"""The type of ``Exchange.run``, and of functions that wrap it."""


@dataclass(frozen=True, slots=True, eq=False)
class CodecValues:
    """The values of a bucket that have one codec (1-D float32), in the bucket's memory or in a copy.

    ``norms`` are None for an exact codec, because a run measures nothing. ``copies`` between the bucket and
    ``tensor`` are made during the run. ``ranges`` has the norms of the parameters, for the request.
    ``filled`` is the fraction of ``tensor`` that isn't padding.
    """

    codec: Codec
    tensor: torch.Tensor
    residual: torch.Tensor | Residual | None = None
    norms: Norms | None = None
    copies: SegmentCopies | None = None
    ranges: Norms | None = None
    filled: float = 1

    @property
    def is_here(self) -> bool:
        """Whether the values are in host memory."""
        return device_of(self.tensor) is CPU

    @property
    def needs_host(self) -> bool:
        """Whether values on a device can't be encoded there, or their residual is elsewhere."""
        lost = self.residual.lost if isinstance(self.residual, Residual) else self.residual
        is_beside = lost is None or device_of(lost) is device_of(self.tensor)
        return not (self.codec.ON_CUDA and is_beside)

    @classmethod
    def copied(cls, tensor: torch.Tensor, part: CodecPart, memory: torch.Tensor) -> CodecValues:
        """Return a part's values, which the run copies to ``memory`` and back unless they are in place."""
        if part.is_in_place:
            return cls(part.codec, part.joined(tensor))
        return cls(part.codec, memory, copies=SegmentCopies(tensor, memory, part), filled=part.filled)

    @classmethod
    def joined(cls, tensor: torch.Tensor, request: BucketRequest, part: CodecPart) -> CodecValues:
        """Return a part's values with its residual and norms, copied together unless they are in place."""
        values, residual = part.joined(tensor), part.joined_residual(request.residual)
        ranges = None if request.norms is None else Norms(part.borders)
        if ranges is not None and part.codec.EXACT:
            ranges.add_own(on_host(values))
        norms = None if part.codec.EXACT else ranges
        return cls(part.codec, values, residual, norms, ranges=ranges, filled=part.filled)


def check_values(tensor: torch.Tensor, residual: torch.Tensor | Residual | None, norms: Norms | None) -> None:
    """Raise ``TensorError`` if residual or norms don't match the values in ``tensor``."""
    if residual is not None:
        _check_residual(residual.lost if isinstance(residual, Residual) else residual, tensor)
    if norms is not None and norms.count != tensor.numel():
        raise TensorError(
            f"expected norms for {tensor.numel()} elements, the tensor's length, got norms for "
            f"{norms.count}; make Norms from the borders of this bucket's parameters"
        )


def _check_residual(residual: torch.Tensor, tensor: torch.Tensor) -> None:
    """Raise ``TensorError`` unless ``residual`` has the tensor's length and device, and separate memory."""
    check_chunk(residual, "residual", on_cuda=tensor.is_cuda)
    if device_of(residual) not in (CPU, device_of(tensor)):
        raise TensorError(
            f"expected a residual on the CPU or on the tensor's device ({device_of(tensor)}), got one on "
            f"{device_of(residual)}; move the residual to the tensor's device"
        )
    if residual.numel() != tensor.numel():
        raise TensorError(
            f"expected a residual of {tensor.numel()} elements, like the tensor, got {residual.numel()}; "
            "pass a separate residual for each bucket"
        )
    nbytes = tensor.nbytes
    if nbytes and abs(residual.data_ptr() - tensor.data_ptr()) < nbytes:
        raise TensorError(
            "expected a residual in its own memory, got the tensor's memory; pass residual.clone()"
        )


def check_views(tensor: torch.Tensor, request: BucketRequest, views: ParameterViews) -> None:
    """Raise ``TensorError`` unless views, residual, and norms match the bucket."""
    if views.borders[-1] != tensor.numel():
        raise TensorError(
            f"expected views of {tensor.numel()} elements, the tensor's length, got views of "
            f"{views.borders[-1]}; make the views from this bucket's parameters"
        )
    check_values(tensor, request.residual, request.norms)
    if request.norms is not None and request.norms.borders.tolist() != [*views.borders]:
        raise TensorError(
            f"expected norms for {len(views.counts)} parameters, got norms for other ranges; make Norms from "
            "the borders of the views' parameters"
        )
