"""How much of a gradient a run's encodings lose on this rank, by ranges of the bucket.

What is kept is sums of squares in float64 for every range: of the rank's own gradient, before a residual is
added, of what its encodings lost, over all hops, and of the values that they lost it from, before and after.
Whose ranges they are, its callers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gradwire import _native, collectives
from gradwire._native import Pass
from gradwire.codecs import Codec
from gradwire.codecs.native import NativeCodec
from gradwire.collectives.frame_order import segments
from gradwire.errors import TensorError
from gradwire.plan import FLOAT_NBYTES, Plan


class Norms:
    """Sums of squares of one bucket's ranges; every run that it is given to begins them anew.

    A sum is not finite exactly where a value is not. An exact codec loses nothing, so nothing is looked at
    then, and all sums are 0.

    Parameters
    ----------
    borders
        Where ranges begin and the last one ends: not falling, from 0 to the length of the bucket. Raises
        ``TensorError`` otherwise.

    Attributes
    ----------
    own
        Of this rank's gradient, for every range; 1-D float64.
    lost
        Of what its encodings lost, the same.
    encoded, decoded
        Of the partial sums that it has encoded, and of what others decode; 0 where a residual is kept.
    sums
        All four, one below the other.
    borders
        Those of the parameter, as int64.
    """

    def __init__(self, borders: Sequence[int]) -> None:
        if not borders or borders[0] != 0 or any(a > b for a, b in pairwise(borders)):
            raise TensorError(f"borders of ranges rise from 0 to the bucket's length, but are {[*borders]}")
        self.count = borders[-1]
        self.borders = torch.tensor(borders, dtype=torch.int64, device="cpu")
        self.sums = torch.zeros(4, len(borders) - 1, dtype=torch.float64, device="cpu")
        self.own, self.lost, self.encoded, self.decoded = self.sums

    def clear(self) -> None:
        """Begin anew."""
        self.sums.zero_()

    def look(self, gradient: torch.Tensor) -> None:
        """Take in this rank's own gradient, all of the bucket."""
        _native.sum_norms(Pass.LOOK, gradient, gradient, 0, self.borders, self.own)

    def add(self, gradient: torch.Tensor, values: torch.Tensor, start: int) -> None:
        """Take in this rank's own gradient from ``start`` on, then add the residual's ``values`` to it."""
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
        """Take in what ``payload``, the encoding of ``elements``, which begin at ``start``, has lost.

        It is written to ``lost``, unless that is None; then what was encoded and what is decoded is taken in,
        too. With a ``divisor``, ``elements`` adopt what is decoded, divided by it. Returns the sum of squares
        of what was lost, and whether all that was adopted is finite.
        """
        if isinstance(codec, NativeCodec) and _native.has_ranges(codec.compiled[0]):
            name, params = codec.compiled
            way = name, payload, params, elements, lost, start, self.borders, self.sums[1:]
            return _native.lose(*way, divisor=divisor, compares=lost is None)
        decoded = torch.empty_like(elements) if lost is None else lost
        codec.decode(payload, decoded)
        if lost is None:
            _native.sum_norms(Pass.LOOK, elements, elements, start, self.borders, self.encoded)
            _native.sum_norms(Pass.LOOK, decoded, decoded, start, self.borders, self.decoded)
        how = Pass.ADOPT if divisor else Pass.SUBTRACT
        total = _native.sum_norms(how, elements, decoded, start, self.borders, self.lost)
        return total, divisor == 0 or _native.finish(elements, divisor)


def check_norms(norms: Norms, tensor: torch.Tensor) -> None:
    """Raise ``TensorError`` unless the ranges of ``norms`` are those of ``tensor``."""
    if norms.count != tensor.numel():
        raise TensorError(
            f"the ranges of norms must end where the tensor does, at {tensor.numel()}, but end at "
            f"{norms.count}; make Norms from the borders of this bucket's parameters"
        )


# How far a sum over all ranks may be from the exact one: every rank's encoding, and float32's rounding.
#
# The sum of magnitudes, the *envelope*, bounds every partial sum. Losses of earlier hops may enlarge it a
# little.

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
