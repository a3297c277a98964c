"""Checks of tensors before they are passed to kernels, which receive only addresses and lengths."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.deferred import torch
from gradwire.errors import TensorError


def check_tensor(x: torch.Tensor, what: str, dtype: torch.dtype, *, on_cuda: bool = False) -> None:
    """Raise ``TensorError`` unless ``x`` is a 1-D contiguous CPU tensor of ``dtype`` that has memory.

    With ``on_cuda``, a CUDA tensor is also valid. ``what`` names the tensor in the error.
    """
    if not isinstance(x, torch.Tensor):
        raise TensorError(
            f"expected a torch tensor for {what}, got a {type(x).__name__}; convert an array with "
            "torch.from_numpy"
        )
    is_there = x.is_cpu or (on_cuda and x.is_cuda)
    if x.dtype is not dtype or x.dim() != 1 or not x.is_contiguous() or not is_there:
        layout = "" if x.is_contiguous() else "non-contiguous "
        place = "on the CPU or a GPU" if on_cuda else "on the CPU"
        raise TensorError(
            f"expected a 1-D contiguous {dtype} tensor {place} for {what}, got a {layout}{x.dtype} tensor "
            f"of shape {tuple(x.shape)} on {x.device}; {_instead(what, dtype)}"
        )
    if x.is_neg() or x._is_zerotensor() or (x.numel() and x.data_ptr() == 0):
        raise TensorError(
            f"expected a materialized tensor for {what}, got a lazily negated view or a tensor without "
            f"memory; {_instead(what, dtype)}"
        )


def _instead(what: str, dtype: torch.dtype) -> str:
    """Return the remedy: a copy in a variable, because results in a temporary copy would be lost."""
    return (
        f"create flat = {what}.detach().to('cpu', {dtype}).clone().flatten(), pass flat, and read the "
        "result from flat"
    )


# The parts of a message of weights, as arguments of the kernels.


class Packed(NamedTuple):
    """A tensor to pack into a message at ``offset`` bytes, with the top ``bits`` bits of each value.

    ``x`` is contiguous float32. With ``summed``, the kernel computes its sum of squares.
    """

    x: torch.Tensor
    offset: int
    bits: int
    summed: bool


class DeltaSource(NamedTuple):
    """A tensor (contiguous float32) whose delta from ``base`` is encoded into a message, after ``front``.

    The kernel updates ``base``, the receiver's words, to the masters' words. Without ``base``, the masters
    are sent unencoded. With ``hashed``, the front's last eight bytes become the hash of the new base.
    """

    masters: torch.Tensor
    base: torch.Tensor | None = None
    front: bytes = b""
    hashed: bool = False


class DeltaBody(NamedTuple):
    """The body of a delta, and the words that it changes in place.

    A ``full`` delta applies to zeros instead of the words. A ``plain`` body is the new words, unencoded.
    """

    address: int
    nbytes: int
    words: torch.Tensor
    full: bool
    plain: bool
