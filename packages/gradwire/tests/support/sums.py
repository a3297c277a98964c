"""Shares of ranks, their exact sum, and how far an exchange may be from it."""

from __future__ import annotations

import math

import torch

from gradwire import collectives
from gradwire.codecs import Codec
from gradwire.collectives.frame_order import segments
from gradwire.plan import SEGMENT_UNIT_NBYTES

SEGMENT_COUNT = SEGMENT_UNIT_NBYTES // 4
COMPOSED = ("hierarchical:2,ring+star", "hierarchical:3,tree+butterfly", "hierarchical:2x2")
"""Hierarchies with groups that are unequal in most worlds."""


def shares(world: int, n: int, scale: float = 0.01) -> list[torch.Tensor]:
    """Return random gradients, one for every rank."""
    generator = torch.Generator().manual_seed(1000 * world + n)
    return [torch.randn(n, generator=generator) * scale for _ in range(world)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as whole numbers, of which all are equal to themselves."""
    return tensor.view(torch.int32)


def check_sum(results: list[torch.Tensor], xs: list[torch.Tensor], codec: Codec, algorithm: str) -> None:
    """Assert that all ranks have the same bits and that these are within the bound of the exact sum."""
    for result in results:
        assert torch.equal(bits(result), bits(results[0])), (algorithm, len(xs), xs[0].numel())
    most = bound_of_sum(codec, xs, algorithm)
    if math.isfinite(most) and xs[0].numel():
        exact = torch.stack(xs).double().sum(0)
        assert (results[0].double() - exact).abs().max().item() <= most, (algorithm, len(xs), xs[0].numel())


def bound_of_sum(codec: Codec, xs: list[torch.Tensor], algorithm: str) -> float:
    """Bound every element of a sum: each of ``p`` encodings errs by the codec's bound for what it encodes.

    What is encoded is a partial sum, so it is at most the sum of the magnitudes, and the errors made before.
    """
    world, n = len(xs), xs[0].numel()
    magnitudes = torch.stack([x.abs() for x in xs]).sum(0)
    chunks = collectives.get(algorithm).chunks(world)
    worst = 0.0
    for chunk in range(chunks):
        for segment in segments(n, chunks, chunk, SEGMENT_COUNT):
            part = magnitudes[segment.start : segment.stop]
            once = codec.bound(part) if part.numel() else 0.0
            if math.isfinite(once) and part.numel():
                once = codec.bound(part + world * once)
            worst = max(worst, once)
    rounding = world * 2**-24 * (magnitudes.max().item() if n else 0.0)
    return world * (worst + rounding)
