"""Which codecs an accuracy budget admits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from gradwire.codecs import Codec
from gradwire.codecs.wrappers.scaled import Scaled
from gradwire.errors import SpecError
from gradwire.timing.replay.environment import CodecCost


@dataclass(frozen=True)
class Admission:
    """A codec and its largest error, in units of the gradients' sum over all ranks.

    ``error`` is ``p`` times that of one encoding, because an exchange encodes a value ``p`` times.
    ``guaranteed`` says that it is a bound for all gradients; otherwise it is the largest error in the
    calibration. ``admitted`` says whether it is within the budget.
    """

    codec: Codec
    error: float
    guaranteed: bool
    admitted: bool


def admit(
    codecs: Iterable[Codec], costs: Mapping[str, CodecCost], world: int, largest_error: float | None
) -> list[Admission]:
    """Return each codec's error in a sum over ``world`` ranks, and whether the budget allows it.

    ``largest_error`` is the largest absolute error that an element of the sum may have (for the average,
    divide by ``world``); None means no limit. Raises ``SpecError`` as ``check_budget`` does.
    """
    limit = check_budget(largest_error)
    return [_admission(codec, costs[str(codec)], world, limit) for codec in codecs]


def check_budget(largest_error: float | None) -> float:
    """Return the limit, infinite for None. Raises ``SpecError`` unless it is a number from 0 up."""
    if largest_error is not None and not (
        isinstance(largest_error, (int, float)) and 0 <= largest_error < math.inf
    ):
        raise SpecError(
            f"the largest error must be a number from 0 up, in units of the summed gradients, but is "
            f"{largest_error!r}"
        )
    return math.inf if largest_error is None else largest_error


def _admission(codec: Codec, cost: CodecCost, world: int, limit: float) -> Admission:
    # what it promises without having seen a value; a scale's bound is in proportion to the values
    promised = 0.0 if isinstance(codec, Scaled) else codec.bound(torch.empty(0))
    measured = max(point.largest_error for point in cost.points)
    error = world * (promised or measured)
    return Admission(codec, error, guaranteed=promised > 0 or codec.EXACT, admitted=error <= limit)
