"""How far a sum over all ranks may be from the exact one: every rank's encoding, and float32's rounding.

Every partial sum is bounded by the sum of magnitudes, the *envelope*, which what earlier hops have lost may
enlarge a little.
"""

from __future__ import annotations

import torch

from gradwire import collectives
from gradwire.collectives.frame_order import segments
from gradwire.plan import FLOAT_NBYTES, Plan

_ROUNDING = 2.0**-23
"""Of one float32 addition, relative to the sum of magnitudes, and generous."""


def error_bound(plan: Plan, envelope: torch.Tensor, world: int) -> float:
    """Return the largest absolute error of any element; infinite where the codec promises nothing.

    ``envelope`` is the sum of the magnitudes of all ranks' values, 1-D float32, as long as the bucket.
    """
    chunks, most = collectives.get(plan.algorithm).chunks(world), plan.segment_nbytes // FLOAT_NBYTES
    cut = [each for chunk in range(chunks) for each in segments(envelope.numel(), chunks, chunk, most)]

    def largest(values: torch.Tensor) -> float:
        return max(plan.encoding.bound(values[each.start : each.stop]) for each in cut)

    return world * largest(envelope + world * largest(envelope)) + rounding_bound(envelope, world)


def rounding_bound(envelope: torch.Tensor, world: int) -> float:
    """Return the part of ``error_bound`` that an exact codec has, too."""
    return world * _ROUNDING * envelope.max().item()
