"""Excerpts of gradients: small enough to be kept, from every parameter, without waiting for a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

MOST_COUNT = 1 << 20
"""Floats of one step's gradient that are kept."""
KEPT_STEPS = 4
"""Excerpts of so many steps tell the noise of gradients."""


def shares(counts: Sequence[int], most: int = MOST_COUNT) -> list[int]:
    """Return how many floats of each of these tensors to keep, in proportion, ``most`` together or less."""
    total = sum(counts)
    return list(counts) if total <= most else [count * most // total for count in counts]


def stretch(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return a copy of ``count`` values from the middle, or of all, 1-D, on the device of ``values``."""
    flat = (values if values.layout is torch.strided else values.to_dense()).detach().reshape(-1)
    begin = max(0, flat.numel() - count) // 2
    return flat[begin : begin + count].clone()


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the excerpts of one step's tensors as one, 1-D float32 on the CPU; this waits for a device."""
    return torch.cat([part.to(device="cpu", dtype=torch.float32) for part in parts])
