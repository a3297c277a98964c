"""Run the backward pass of one batch, whose loss a function of the caller's computes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gradwire.errors import TensorError, shown
from gradwire.training.gradients.flat import FlatGradients


def backward(compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients) -> float:
    """Fill ``gradients`` with those of one batch and return its loss. Raises ``TensorError``."""
    gradients.zero()
    loss = checked_loss(compute_loss())
    value = float(loss.detach())  # here an accelerator is waited for; what backward does it may do meanwhile
    run_backward(loss)
    gradients.collect()
    return value


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass. Raises ``TensorError`` where ``compute_loss`` has done it already."""
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise TensorError(
            "step runs the backward pass of the loss that compute_loss returns, but that was run before: "
            "leave backward to step, and compute the loss anew in each"
        ) from error


def checked_loss(loss: object) -> torch.Tensor:
    """Return what ``compute_loss`` has returned. Raises ``TensorError`` unless backward can begin there."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else shown(loss)
        raise TensorError(
            f"compute_loss must return the loss, a tensor of one value, but returned {found}; write "
            "step(lambda: loss_of(model(x), y)), without backward"
        )
    if loss.is_complex():
        raise TensorError(
            f"compute_loss must return a real loss, but returned {loss.dtype}; take .real or .abs()"
        )
    if not loss.requires_grad:
        raise TensorError(
            "compute_loss must return a loss that depends on a trainable parameter, but this one has no "
            "graph; leave .detach(), .item() and no_grad out of it, and check that requires_grad is on "
            "somewhere"
        )
    return loss
