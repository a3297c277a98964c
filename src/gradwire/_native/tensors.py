"""Which tensors the kernels take: they get addresses and lengths, and look at nothing else."""

from __future__ import annotations

from gradwire.deferred import torch
from gradwire.errors import TensorError


def check_tensor(x: torch.Tensor, what: str, dtype: torch.dtype) -> None:
    """Raise ``TensorError`` unless ``x`` is a 1-D contiguous CPU tensor of ``dtype`` with its values."""
    if not isinstance(x, torch.Tensor):
        raise TensorError(f"{what} must be a torch tensor, but is a {type(x).__name__}")
    if x.dtype is not dtype or x.dim() != 1 or not x.is_contiguous() or not x.is_cpu:
        layout = "" if x.is_contiguous() else "non-contiguous "
        raise TensorError(
            f"{what} must be a 1-D contiguous {dtype} tensor on the CPU, but is a {layout}{x.dtype} tensor "
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
