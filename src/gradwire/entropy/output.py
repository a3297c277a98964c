"""Where an encoder writes: the caller's memory, or new memory."""

from __future__ import annotations

from collections.abc import Callable

from gradwire._native.tensors import check_tensor
from gradwire.deferred import torch
from gradwire.errors import TensorError


def front_of(out: torch.Tensor | None, nbytes: int, write: Callable[[torch.Tensor], int]) -> torch.Tensor:
    """Return the front of ``out``, or of new memory of ``nbytes``, that ``write`` says it has used."""
    if out is None:
        out = torch.empty(nbytes, dtype=torch.uint8)
    check_tensor(out, "out", torch.uint8)
    if out.numel() < nbytes:
        raise TensorError(f"out must hold {nbytes} bytes, but holds {out.numel()}; max_nbytes says how many")
    return out[: write(out)]
