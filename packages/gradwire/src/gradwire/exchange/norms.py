"""The encoding error of a run on this rank, for each range of the bucket.

Every range has four sums of squares in float64: of this rank's gradient without its residual, of the encoding
errors over all hops, and of the values before encoding and after decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gradwire import _native, collectives
from gradwire._native import Pass
from gradwire.codecs import Codec
from gradwire.codecs.native import is_compiled
from gradwire.collectives.frame_order import segments
from gradwire.errors import TensorError
from gradwire.plan import FLOAT_NBYTES, Plan


class Norms:
    """Sums of squares for each range of one bucket, cleared before every run.

    A sum is non-finite if and only if a value in its range is non-finite. An exact codec has no error, so a
    run with an exact codec measures nothing, and all sums are 0.

    Parameters
    ----------
    borders
        The starts of the ranges and the end of the last range, in ascending order from 0 to the length of the
        bucket. Raises ``TensorError`` otherwise.

    Attributes
    ----------
    own
        The sums of this rank's gradient, by range; 1-D float64.
    lost
        The sums of this rank's encoding errors.
    encoded, decoded
        The sums of the values that this rank encoded, before encoding and after decoding; 0 with a residual.
    sums
        All four sums as rows: ``own``, ``lost``, ``encoded``, ``decoded``.
    borders
        The borders as int64.
    """

    def __init__(self, borders: Sequence[int]) -> None:
        if not borders or borders[0] != 0 or any(a > b for a, b in pairwise(borders)):
            raise TensorError(
                f"expected ascending borders that start at 0, got {[*borders]}; pass each range's start, "
                "and the bucket's length"
            )
        self.count = borders[-1]
        self.borders = torch.tensor(borders, dtype=torch.int64, device="cpu")
        self.sums = torch.zeros(4, len(borders) - 1, dtype=torch.float64, device="cpu")
        self.own, self.lost, self.encoded, self.decoded = self.sums

    def clear(self) -> None:
        """Set all sums to 0."""
        self.sums.zero_()

    def add_own(self, gradient: torch.Tensor) -> None:
        """Add the squares of this rank's gradient, which is the whole bucket."""
        _native.sum_norms(Pass.LOOK, gradient, gradient, 0, self.borders, self.own)

    def add(self, gradient: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """Add the squares of this rank's gradient from ``start`` on. Then add ``values`` to the gradient."""
        part = gradient[start : start + values.numel()]
        _native.sum_norms(Pass.ADD, part, values, start, self.borders, self.own)

    def lose(
        self,
        codec: Codec,
        payload: torch.Tensor,
        elements: torch.Tensor,
        start: int,
        lost: torch.Tensor | None,
        divisor: int = 0,
    ) -> tuple[float, bool]:
        """Add the squared encoding error of ``payload``, which encodes ``elements`` from ``start`` on.

        The error is written to ``lost``. If ``lost`` is None, the squares of encoded and decoded values are
        added, too. With a ``divisor``, ``elements`` become the decoded values, divided by it. Return the
        error's sum of squares, and whether all adopted values are finite.
        """
        if is_compiled(codec) and _native.has_ranges(codec.compiled[0]):
            name, params = codec.compiled
            ranges = start, self.borders, self.sums[1:]
            compares = lost is None
            return _native.lose(
                name, payload, params, elements, lost, *ranges, divisor=divisor, compares=compares
            )
        decoded = torch.empty_like(elements) if lost is None else lost
        codec.decode(payload, decoded)
        if lost is None:
            _native.sum_norms(Pass.LOOK, elements, elements, start, self.borders, self.encoded)
            _native.sum_norms(Pass.LOOK, decoded, decoded, start, self.borders, self.decoded)
        how = Pass.ADOPT if divisor else Pass.SUBTRACT
        total = _native.sum_norms(how, elements, decoded, start, self.borders, self.lost)
        return total, divisor == 0 or _native.finish(elements, divisor)


# The error bound of a sum over all ranks: every rank's encoding error, and float32's rounding.
#
# The sum of magnitudes, the *envelope*, bounds every partial sum. Errors of earlier hops may increase it
# slightly.

_ROUNDING = 2.0**-23
"""A generous bound on the rounding error of one float32 addition, relative to the sum of magnitudes."""


def error_bound(plan: Plan, envelope: torch.Tensor, world: int) -> float:
    """Return the absolute error bound of any element of the sum, which is infinite if the codec has no bound.

    ``envelope`` is the sum of the magnitudes of all ranks' values, 1-D float32 of the bucket's length.
    """
    chunks, most = collectives.get(plan.algorithm).chunks(world), plan.segment_nbytes // FLOAT_NBYTES
    cut = [each for chunk in range(chunks) for each in segments(envelope.numel(), chunks, chunk, most)]

    def largest(values: torch.Tensor) -> float:
        return max(plan.encoding.bound(values[each.start : each.stop]) for each in cut)

    return world * largest(envelope + world * largest(envelope)) + rounding_bound(envelope, world)


def rounding_bound(envelope: torch.Tensor, world: int) -> float:
    """Return the float32 rounding part of ``error_bound``, which applies to exact codecs, too."""
    return world * _ROUNDING * envelope.max().item()
