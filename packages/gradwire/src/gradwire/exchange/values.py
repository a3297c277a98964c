"""The values that an exchange sends with one codec, in the bucket's memory or in a copy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradwire.codecs import Codec
from gradwire.devices import CPU, device_of, on_host
from gradwire.errors import TensorError
from gradwire.exchange.feedback import Residual, check_residual
from gradwire.exchange.norms import Norms, check_norms
from gradwire.exchange.request import BucketRequest
from gradwire.exchange.views import CodecPart, ParameterViews, SegmentCopies


@dataclass(frozen=True, slots=True, eq=False)
class CodecValues:
    """The values of a bucket that have one codec, with their parts of the request.

    Attributes
    ----------
    codec, tensor
        The codec, and the values: 1-D float32, changed in place.
    residual, norms
        The residual and the norms of the run; no norms for an exact codec, because a run measures nothing.
    copies
        The copies between the bucket and ``tensor`` during the run; None without copies.
    ranges
        The norms of the parameters, for the request; None if the request has no norms.
    filled
        The fraction of ``tensor`` that isn't padding.
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
        lost = _lost_of(self.residual)
        is_beside = lost is None or device_of(lost) is device_of(self.tensor)
        return not (self.codec.ON_CUDA and is_beside)

    def check(self) -> None:
        """Raise ``TensorError`` if residual or norms don't match the values."""
        _check(self.tensor, self.residual, self.norms)


def check_views(tensor: torch.Tensor, request: BucketRequest, views: ParameterViews) -> None:
    """Raise ``TensorError`` unless views, residual, and norms match the bucket."""
    if views.borders[-1] != tensor.numel():
        raise TensorError(
            f"expected views of {tensor.numel()} elements, the tensor's length, got views of "
            f"{views.borders[-1]}; make the views from this bucket's parameters"
        )
    _check(tensor, request.residual, request.norms)
    if request.norms is not None and request.norms.borders.tolist() != [*views.borders]:
        raise TensorError(
            f"expected norms for {len(views.counts)} parameters, got norms for other ranges; make Norms from "
            "the borders of the views' parameters"
        )


def copied(tensor: torch.Tensor, part: CodecPart, memory: torch.Tensor) -> CodecValues:
    """Return a part's values, which the run copies to ``memory`` and back unless they are in place."""
    if part.is_in_place:
        return CodecValues(part.codec, part.joined(tensor))
    return CodecValues(part.codec, memory, copies=SegmentCopies(tensor, memory, part), filled=part.filled)


def joined(tensor: torch.Tensor, request: BucketRequest, part: CodecPart) -> CodecValues:
    """Return a part's values with its residual and norms, copied together unless they are in place."""
    values, residual = part.joined(tensor), part.joined_residual(request.residual)
    ranges = None if request.norms is None else Norms(part.borders)
    if ranges is not None and part.codec.EXACT:
        ranges.add_own(on_host(values))
    norms = None if part.codec.EXACT else ranges
    return CodecValues(part.codec, values, residual, norms, ranges=ranges, filled=part.filled)


def _lost_of(residual: torch.Tensor | Residual | None) -> torch.Tensor | None:
    return residual.lost if isinstance(residual, Residual) else residual


def _check(tensor: torch.Tensor, residual: torch.Tensor | Residual | None, norms: Norms | None) -> None:
    lost = _lost_of(residual)
    if lost is not None:
        check_residual(lost, tensor)
    if norms is not None:
        check_norms(norms, tensor)
