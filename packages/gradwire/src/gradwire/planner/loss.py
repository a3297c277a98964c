"""The share of extra steps that a plan needs to reach a loss, relative to exact gradients without delay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from gradwire import collectives
from gradwire.codecs.topk import TopK
from gradwire.collectives.matching import messages
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.timing.environment import CodecCost

# The gradients of batches scatter around their mean G with covariance Sigma. ``tr(Sigma) / |G|^2`` is the
# simple noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), section 2.2,
# here in batches of one rank: averaging more batches than the noise scale gains little.


def noise_scale(gradients: Sequence[torch.Tensor]) -> float:
    """Return the noise scale of gradients of equal size, of different ranks or steps with similar weights.

    The scale is infinite if the gradients share no direction, or with fewer than two gradients.
    """
    count = len(gradients)
    if count < 2:
        return math.inf
    flat = [each.detach().to("cpu", torch.float32).flatten() for each in gradients]
    squares = sum(_square(each) for each in flat) / count
    products = (_square(torch.stack(flat).sum(0)) / count - squares) / (count - 1)
    return math.inf if products <= 0 else max(0.0, squares / products - 1)


def added_noise(
    algorithm: str, world: int, noise: float, lost: Callable[[int], float], *, exact: bool = False
) -> float:
    """Return the variance that encodings add to the average gradient, as a share of its second moment.

    ``lost(k)`` is the relative error of encoding a sum of k gradients. The squared norm of such a sum is
    ``k^2 |G|^2 + k tr(Sigma)``. The number of steps to a loss is proportional to ``1 + tr(Sigma) / (p
    |G|^2)`` (equation 2.11, with p for ``world``). The squared errors of all encodings add to this variance.
    """
    if exact:
        return 0.0
    total = 0.0
    for terms, encodings in encoded_terms(algorithm, world).items():
        if math.isinf(noise):
            weight = terms / world
        else:
            weight = (terms**2 + terms * noise) / world**2 / (1 + noise / world)
        total += encodings * weight * lost(terms) ** 2
    return total


@lru_cache(maxsize=256)
def encoded_terms(algorithm: str, world: int) -> Mapping[int, float]:
    """Return how often an all-reduce encodes an element, by the number of gradients in the encoded sum."""
    collective = collectives.get(algorithm)
    chunks = collective.chunks(world)
    held = [[1] * chunks for _ in range(world)]
    found: Counter[int] = Counter({world: chunks})  # every chunk's owner encodes the result
    for message in messages(collective.reduce(rank, world) for rank in range(world)):
        for chunk in range(message.first, message.last):
            terms = held[message.source][chunk]
            found[terms] += 1
            held[message.target][chunk] += terms
    return {terms: encodings / chunks for terms, encodings in sorted(found.items())}


def _square(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


@dataclass(frozen=True)
class Effect:
    """The share of extra steps per unit of a cause, and the standard deviation of this share between runs."""

    factor: float
    deviation: float


@dataclass(frozen=True)
class Calibration:
    """The effects of encoding noise and of staleness on the number of steps to a loss.

    All effects but the last are proportional to the added noise, raised to ``power``: with a fixed learning
    rate, runs need more steps than in theory (power 1) for little noise, and fewer for much noise.
    """

    power: float
    noise: Effect  # without error feedback
    dropped: Effect  # of codecs that drop values without error feedback, maybe the same in every step
    residual: Effect  # with error feedback
    stale: Effect  # per step of staleness


CALIBRATION = Calibration(
    power=0.618445133708896,
    noise=Effect(0.5464207395781894, 0.43332643977948615),
    dropped=Effect(1.537702113880081, 1.1799049176831735),
    residual=Effect(0.7249900122171496, 1.1015494558463068),
    stale=Effect(0.0332, 0.0029),
)
"""The best fit to the runs of three tasks in ``gradwire_lab.closed_forms.extra_steps``."""


@dataclass(frozen=True)
class Extra:
    """A share of extra steps, and its standard deviation."""

    share: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True)
class StepsToLoss:
    """A model of the extra steps that plans need to reach a loss, with the factors in ``CALIBRATION``.

    The share grows with the noise that encodings add to the average gradient (``added_noise``); error
    feedback and dropped values change the factor. It also grows in proportion to the gradients' staleness.
    """

    costs: Mapping[str, CodecCost]  # of encodings with their relative errors, by spec
    noise: float  # the gradients' noise scale, in a rank's batches (``noise_scale``)

    def extra(self, plan: Plan, world: int) -> Extra:
        """Return the share of extra steps. Raises ``SpecError`` if the codec's relative error is unknown."""
        spec = str(plan.encoding)

        def lost(terms: int) -> float:
            share = self.costs[spec].of(terms, world).lost
            if share is None:
                raise SpecError(
                    f"expected costs of {spec} with a relative error, got costs without one; measure the "
                    "costs again, or choose the objective 'step'"
                )
            return share

        added = added_noise(plan.algorithm, world, self.noise, lost, exact=plan.encoding.EXACT)
        noise, late, stale = added**CALIBRATION.power, plan.pipeline - 1, CALIBRATION.stale
        dropped = CALIBRATION.dropped if isinstance(plan.encoding, TopK) else CALIBRATION.noise
        lossy = CALIBRATION.residual if plan.keeps_residual else dropped
        share = lossy.factor * noise + stale.factor * late
        return Extra(share, math.hypot(lossy.deviation * noise, stale.deviation * late))
