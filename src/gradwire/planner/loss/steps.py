"""The share of extra steps that a plan needs to a loss, compared with exact gradients, never stale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.codecs.formats.topk import TopK
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.loss.measured import CALIBRATION, Effect
from gradwire.planner.loss.noise import added_noise
from gradwire.timing.replay.environment import CodecCost


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
