"""Clip the averaged gradient by its global norm, to the same bits on every rank."""

from __future__ import annotations

import math

import torch

from gradwire.errors import SpecError

_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_, so that scripts keep their results
_LANES = 1 << 16
"""So many sums are kept side by side: 512 kB, which stays in a cache. A power of two, to be halved."""


def check_max_norm(max_norm: float | None) -> float:
    """Return ``max_norm``, infinite where it is None. Raises ``SpecError`` unless it is above 0."""
    if max_norm is None:
        return math.inf
    if not isinstance(max_norm, int | float) or isinstance(max_norm, bool) or not max_norm > 0:
        raise SpecError(f"max_norm must be a number above 0, or None for no clipping, but is {max_norm!r}")
    return float(max_norm)


def clip(gradient: torch.Tensor, max_norm: float) -> None:
    """Scale ``gradient`` (1-D float32, in place) down to the 2-norm ``max_norm`` where it is longer.

    Ranks whose gradients have the same bits scale by the same factor, whatever their processors. A gradient
    whose norm is not finite is left as it is.
    """
    if math.isinf(max_norm):
        return
    norm = exact_order_norm(gradient)
    factor = max_norm / (norm + _EPSILON)
    if math.isfinite(norm) and factor < 1:
        gradient.mul_(factor)


def exact_order_norm(gradient: torch.Tensor) -> float:
    """Return the 2-norm of a 1-D float32 tensor, with the same bits on every machine.

    It is within 2^-38 of the exact one, relatively, for up to 2^31 elements.

    torch's own norms add in an order that depends on the instruction set and on the number of threads, and
    floats added in another order have other last bits. Here each operation has one possible result: the
    product of two float32 is exact in float64; elements are added to other elements, never along a vector,
    in an order that this text fixes; and float64 addition and square root round correctly everywhere (IEEE
    754). Widening a subnormal may flush it to 0 where a thread is set so; its square is below 2^-250.
    """
    sums = torch.zeros(_LANES, dtype=torch.float64, device=gradient.device)
    squares = torch.empty_like(sums)
    for part in torch.split(gradient, _LANES):
        own = squares[: part.numel()].copy_(part)
        sums[: part.numel()].add_(own.mul_(own))
    while sums.numel() > 1:
        low, high = sums.chunk(2)
        sums = low + high
    return math.sqrt(sums.item())
