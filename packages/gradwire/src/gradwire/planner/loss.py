"""The share of extra steps that a plan needs to a loss, compared with exact gradients, never stale."""

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

# The noise of gradients, and what a plan's encodings add to it.
#
# Gradients of batches scatter around their mean G. Their variance over its square, ``tr(Sigma) / |G|^2``, is
# the simple noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), section
# 2.2, here in batches of a rank: averaging more of those than that gains little.


def noise_scale(gradients: Sequence[torch.Tensor]) -> float:
    """Return the noise scale of these gradients' batches; infinite where they share no direction.

    They are those of different ranks or steps, of one size, at weights that differ little. With fewer
    than two, the scale counts as infinite.
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
    """Return the variance that encodings add to that of the average of all ranks' gradients, as a share.

    An encoding of a sum of k gradients loses ``lost(k)`` of its norm. The square of that norm is
    ``k^2 |G|^2 + k tr(Sigma)``, and steps to a loss are in proportion to ``1 + tr(Sigma) / (p |G|^2)``
    (equation 2.11), p being ``world``, to which the losses of all encodings add.
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
    """Return how often an element is encoded in an all-reduce, by the number of gradients in it then."""
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


# What lossy and stale gradients cost in steps.


@dataclass(frozen=True)
class Effect:
    """Extra steps for a unit of a cause, and the standard deviation between runs."""

    factor: float
    deviation: float


@dataclass(frozen=True)
class Calibration:
    """The effects of noise, of noise that residuals send later, and of a step of staleness.

    ``dropped`` is that of codecs which leave values out and keep no residual: the same ones again and again.
    The cause of all but the last is the added noise to the ``power``. Theory has a power of 1 for training
    whose learning rate always suits the noise; runs with one learning rate spend more steps on little noise,
    and fewer on much.
    """

    power: float
    noise: Effect
    dropped: Effect
    residual: Effect
    stale: Effect


CALIBRATION = Calibration(
    power=0.618445133708896,
    noise=Effect(0.5464207395781894, 0.43332643977948615),
    dropped=Effect(1.537702113880081, 1.1799049176831735),
    residual=Effect(0.7249900122171496, 1.1015494558463068),
    stale=Effect(0.0332, 0.0029),
)
"""The effects that fit runs of three tasks best: ``gradwire_lab.closed_forms.extra_steps`` has them."""


@dataclass(frozen=True)
class Extra:
    """A share of extra steps, and its standard deviation."""

    share: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True)
class StepsToLoss:
    """The steps that plans need in addition to reach a loss.

    The share grows with the noise that encodings add to the average gradient's (``added_noise``), by a factor
    that is another one if residuals are kept or values left out. It also grows in proportion to the steps by
    which gradients are stale. The factors are those of ``CALIBRATION``.

    Parameters
    ----------
    costs
        Those of encodings, by their specs, with what they lose.
    noise
        The gradients' noise scale, in a rank's batches (``noise_scale``).
    """

    costs: Mapping[str, CodecCost]
    noise: float

    def extra(self, plan: Plan, world: int) -> Extra:
        """Return the share for ``world`` ranks. Raises ``SpecError`` for a codec whose loss is not known."""
        dropped = CALIBRATION.dropped if isinstance(plan.encoding, TopK) else CALIBRATION.noise
        lossy = CALIBRATION.residual if plan.keeps_residual else dropped
        noise = self._added(plan, world) ** CALIBRATION.power
        return _sum([(lossy, noise), (CALIBRATION.stale, plan.pipeline - 1)])

    def _added(self, plan: Plan, world: int) -> float:
        spec = str(plan.encoding)

        def lost(terms: int) -> float:
            share = self.costs[spec].of(terms, world).lost
            if share is None:
                raise SpecError(
                    f"the costs of {spec} do not say what it loses; measure them anew, or plan for the step"
                )
            return share

        return added_noise(plan.algorithm, world, self.noise, lost, exact=plan.encoding.EXACT)


def _sum(parts: list[tuple[Effect, float]]) -> Extra:
    deviations = [effect.deviation * amount for effect, amount in parts]
    return Extra(sum(effect.factor * amount for effect, amount in parts), math.hypot(*deviations))
