"""The magnitudes of a chunk's finite values, from which codecs derive error bounds."""

from __future__ import annotations

import math

from gradwire.deferred import torch


def largest_finite(x: torch.Tensor) -> float:
    """Return the largest finite magnitude of ``x``, or 0.0 if there is none."""
    if x.numel() == 0:
        return 0.0
    return float(torch.where(x.isfinite(), x, 0.0).abs().max().detach())


def largest_rms(x: torch.Tensor, block: int) -> float:
    """Return the largest root mean square of a block's finite elements, or 0.0 if there are none."""
    if x.numel() == 0:
        return 0.0
    # NaN fills the last block up, for it counts as little as the elements that are not finite.
    rows = torch.nn.functional.pad(x.detach(), (0, -x.numel() % block), value=math.nan).view(-1, block)
    finite = rows.isfinite()
    squares = torch.where(finite, rows, 0.0).double().square().sum(dim=1)
    return math.sqrt(float((squares / finite.sum(dim=1).clamp(min=1)).max()))


def floor_log2(value: float) -> int:
    """Return the exponent e with ``2**e <= value < 2**(e + 1)``, for a positive ``value``."""
    return math.frexp(value)[1] - 1


def half_ulp(value: float, mantissa_bits: int, min_exponent: int) -> float:
    """Return half a unit in the last place of ``value`` in a binary format; 0.0 for 0.

    ``mantissa_bits`` counts the stored bits; ``min_exponent`` is the exponent of the smallest normal number.
    """
    if value == 0.0:
        return 0.0
    return math.ldexp(1.0, max(floor_log2(value), min_exponent) - mantissa_bits - 1)


def truncation_bound(x: torch.Tensor, dropped_bits: int) -> float:
    """Return the largest error of clearing the low bits of floats."""
    largest = largest_finite(x)
    if largest == 0.0 or dropped_bits == 0:
        return 0.0
    return min(largest, 2.0 ** (max(floor_log2(largest), -126) - 23 + dropped_bits))
