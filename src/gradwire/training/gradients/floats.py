"""The floats of a parameter in a flat gradient: a complex element is two of them, as DDP hands it over."""

from __future__ import annotations

import math

import torch


def float_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a parameter's gradient in floats; that of ``torch.view_as_real`` if complex."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def floats_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient in floats, the same memory."""
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def float_count(parameter: torch.Tensor) -> int:
    """Return the number of floats of a parameter's gradient."""
    return math.prod(float_shape(parameter))
