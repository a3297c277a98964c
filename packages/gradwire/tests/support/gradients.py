"""Random gradients that every process makes alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def random_gradients(counts: Sequence[int]) -> list[torch.Tensor]:
    """Return gradients of these lengths, of values of many sizes, with the same bits everywhere."""
    found = []
    for count in counts:
        generator = torch.Generator().manual_seed(count)
        mantissas = torch.randint(-(1 << 24), 1 << 24, (count,), generator=generator)
        exponents = torch.randint(0, 40, (count,), generator=generator)
        found.append(mantissas.float() * torch.tensor([2.0**-i for i in range(40)])[exponents])
    return found
