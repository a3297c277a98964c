"""The share of extra steps that a plan needs to a loss, compared with exact gradients, never stale."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, pstdev

import torch

from gradwire import collectives
from gradwire.codecs.topk import TopK
from gradwire.collectives.matching import messages
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.timing.environment import CodecCost

# The noise of gradients, and what a plan's encodings add to it.
#
# Gradients of batches scatter around their mean G. Their variance over its square, ``tr(Sigma) / |G|^2``,
# is
# the simple noise scale of McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), section
# 2.2,
# here in batches of a rank: averaging more of those than that gains little.


def noise_scale(gradients: Sequence[torch.Tensor]) -> float:
    """Return the noise scale of these gradients' batches; infinite where they share no direction.

    They are those of different ranks or steps, of one size, at weights that differ little. Of fewer than two
    nothing can be told, and the scale counts as infinite.
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


# What lossy and stale gradients have cost runs in steps, and the factors that follow.
#
# ``python bench/steps_to_loss.py`` trains the runs and prints the rows.


@dataclass(frozen=True)
class Run:
    """A method on a task, compared with exact training on the same batches.

    ``added`` is the noise that ``added_noise`` expects of the method's encodings, and ``extra`` the share of
    extra steps, the mean over seeds, between which it has the standard deviation ``spread``.
    """

    task: str
    method: str
    added: float
    extra: float
    spread: float

    @property
    def kind(self) -> str:
        """The name of the effect in a ``Calibration``."""
        if not self.added:
            return "stale"
        if self.method.endswith("+residual"):
            return "residual"
        return "dropped" if self.method.startswith("topk") else "noise"


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


RUNS: tuple[Run, ...] = (
    Run("digits-mlp", "ecsq:0.5", 0.03449, 0.0335, 0.0103),
    Run("digits-mlp", "ecsq:1", 0.12579, 0.0552, 0.0337),
    Run("digits-mlp", "ecsq:2", 0.43352, 0.1446, 0.0222),
    Run("digits-mlp", "quantize:4", 0.06945, 0.038, 0.014),
    Run("digits-mlp", "errbound:rel=0.25", 0.01637, 0.0398, 0.0063),
    Run("digits-mlp", "topk:0.3", 0.0231, 0.1017, 0.0019),
    Run("digits-mlp", "quantize:4 +residual", 0.06945, 0.029, 0.0083),
    Run("digits-mlp", "topk:0.1 +residual", 0.28134, 0.1988, 0.0393),
    Run("digits-mlp", "identity K=2", 0, 0.0303, 0.0148),
    Run("digits-cnn", "ecsq:0.5", 0.03491, 0.0821, 0.0194),
    Run("digits-cnn", "ecsq:1", 0.13494, 0.1995, 0.0527),
    Run("digits-cnn", "ecsq:2", 0.49808, 0.4986, 0.0092),
    Run("digits-cnn", "quantize:4", 0.06774, 0.1396, 0.0526),
    Run("digits-cnn", "errbound:rel=0.25", 0.01961, 0.0495, 0.0249),
    Run("digits-cnn", "topk:0.3", 0.08269, 0.2164, 0.0375),
    Run("digits-cnn", "quantize:4 +residual", 0.06774, 0.1384, 0.0373),
    Run("digits-cnn", "topk:0.1 +residual", 0.45755, 0.5302, 0.0262),
    Run("digits-cnn", "identity K=2", 0, 0.0361, 0.0122),
    Run("gpt", "ecsq:0.5", 0.01953, 0.055, 0),
    Run("gpt", "ecsq:1", 0.06814, 0.176, 0),
    Run("gpt", "ecsq:2", 0.21739, 0.512, 0),
    Run("gpt", "quantize:4", 0.05794, 0.137, 0),
    Run("gpt", "errbound:rel=0.25", 0.01842, 0.086, 0),
    Run("gpt", "topk:0.3", 0.00989, 0.198, 0),
    Run("gpt", "quantize:4 +residual", 0.05794, 0.189, 0),
    Run("gpt", "topk:0.1 +residual", 0.05434, 0.527, 0),
)
"""Of the GPT, there is one seed, whose ``spread`` counts as 0."""


def calibrate(runs: Iterable[Run]) -> Calibration:
    """Return the effects that fit runs best.

    Noise is fitted by logarithms: the power is the slope within tasks, and the factors are geometric means,
    for tasks differ by factors.
    """
    kinds: dict[str, list[Run]] = {"noise": [], "dropped": [], "residual": [], "stale": []}
    for run in runs:
        kinds[run.kind].append(run)
    power = _slope(kinds["noise"])
    stale = _arithmetic([run.extra for run in kinds.pop("stale")])
    effects = {
        kind: _geometric([run.extra / run.added**power for run in found]) for kind, found in kinds.items()
    }
    return Calibration(power, stale=stale, **effects)


def _slope(runs: list[Run]) -> float:
    """Return the slope of log extra over log added, with an intercept for each task."""
    above = below = 0.0
    for task in {run.task for run in runs}:
        points = [(math.log(run.added), math.log(run.extra)) for run in runs if run.task == task]
        means = [fmean(each) for each in zip(*points, strict=True)]
        above += sum((x - means[0]) * (y - means[1]) for x, y in points)
        below += sum((x - means[0]) ** 2 for x, _ in points)
    return above / below if below else 1.0


def _geometric(factors: list[float]) -> Effect:
    logs = [math.log(each) for each in factors]
    factor = math.exp(fmean(logs))
    return Effect(factor, factor * math.expm1(pstdev(logs)))


def _arithmetic(shares: list[float]) -> Effect:
    return Effect(fmean(shares), pstdev(shares))


CALIBRATION = calibrate(RUNS)


@dataclass(frozen=True)
class Extra:
    """A share of extra steps, and its standard deviation."""

    share: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True)
class StepsToLoss:
    """What plans cost in steps.

    The share grows with the noise that encodings add to the average gradient's (``added_noise``), by a factor
    that is another one if residuals are kept or values left out. It also grows in proportion to the steps by
    which gradients are stale. The factors are those of runs (``planner.loss.measured``).

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
