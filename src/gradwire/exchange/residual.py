"""The residual of one bucket: what it adds to the bucket, and the memory for what the walk loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradwire.codecs.base import check_chunk
from gradwire.devices import CPU, device_of
from gradwire.errors import TensorError


@dataclass
class Residual:
    """A residual on the host, which changes only after a walk has succeeded.

    Attributes
    ----------
    values
        1-D contiguous float32 tensors which, one after the other, are as long as the bucket: one for each
        parameter, if parameters have codecs of their own.
    lost
        1-D contiguous float32, as long as the bucket: memory of its own for what a walk loses.
    waits
        Whether the owner takes what was lost when it wants to, so that ``values`` stay as they are.
    finite
        Whether all sums of the last walk were; the same on all ranks after an all-reduce.
    replaced
        Whether what the last walk lost was kept, so that ``lost`` is what comes after ``values``.
    """

    values: Sequence[torch.Tensor]
    lost: torch.Tensor
    waits: bool = False
    finite: bool = False
    replaced: bool = False

    def replace(self) -> None:
        """Let what was lost be the values, now or when the owner wants it."""
        self.replaced = True
        if not self.waits:
            for own, part in zip(self.values, self.parts(), strict=True):
                own.copy_(part)

    def heal(self) -> None:
        """Keep the values, but for those that are not finite, which become 0, unless they are to wait."""
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
