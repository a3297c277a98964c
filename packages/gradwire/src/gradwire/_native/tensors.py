"""Checks of the tensors that kernels take: kernels get addresses and lengths, and check nothing else."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.deferred import torch
from gradwire.errors import TensorError


def check_tensor(x: torch.Tensor, what: str, dtype: torch.dtype, *, on_cuda: bool = False) -> None:
    """Raise ``TensorError`` unless ``x`` is a 1-D contiguous CPU tensor of ``dtype`` with its values.

    With ``on_cuda``, a CUDA tensor passes, too.
    """
    if not isinstance(x, torch.Tensor):
        raise TensorError(f"{what} must be a torch tensor, but is a {type(x).__name__}")
    is_there = x.is_cpu or (on_cuda and x.is_cuda)
    if x.dtype is not dtype or x.dim() != 1 or not x.is_contiguous() or not is_there:
        layout = "" if x.is_contiguous() else "non-contiguous "
        place = "on the CPU or a GPU" if on_cuda else "on the CPU"
        raise TensorError(
            f"{what} must be a 1-D contiguous {dtype} tensor {place}, but is a {layout}{x.dtype} tensor "
            f"of shape {tuple(x.shape)} on {x.device}; {_instead(what, dtype)}"
        )
    if x.is_neg() or x._is_zerotensor() or (x.numel() and x.data_ptr() == 0):
        raise TensorError(
            f"{what} must have its values in memory, but negates or lacks them; {_instead(what, dtype)}"
        )


def _instead(what: str, dtype: torch.dtype) -> str:
    """Return advice that keeps the copy: results written to a temporary copy would be lost."""
    return (
        f"make flat = {what}.detach().to('cpu', {dtype}).clone().flatten(), pass flat, and read results there"
    )


# The parts of messages of several tensors: rows of a call to the kernels.


class Packed(NamedTuple):
    """A tensor of a message.

    Attributes
    ----------
    x
        Contiguous float32.
    offset, bits
        The place in the message, which has room for it, and the bits of the format ``pack``.
    summed
        Whether its sum of squares is wanted.
    """

    x: torch.Tensor
    offset: int
    bits: int
    summed: bool


class DeltaSource(NamedTuple):
    """A tensor of a message of deltas.

    Attributes
    ----------
    masters
        Contiguous float32.
    base
        The words that the receiver holds, which become those of the masters; None to send the masters as they
        are.
    front
        The bytes before the body of the delta.
    hashed
        Whether the last eight bytes of the front become the hash of the new base.
    """

    masters: torch.Tensor
    base: torch.Tensor | None = None
    front: bytes = b""
    hashed: bool = False


class DeltaBody(NamedTuple):
    """The body of a delta, and the words that it changes.

    Attributes
    ----------
    address, nbytes
        The memory of the body.
    words
        The words that it changes in place.
    full
        Whether it starts from zeros instead of these words.
    plain
        Whether the body is the new words themselves.
    """

    address: int
    nbytes: int
    words: torch.Tensor
    full: bool
    plain: bool
