"""What a plan with several codecs takes, from what plans with one of them take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gradwire.auto.quality.contract import Lost, by_codec
from gradwire.codecs import Codec
from gradwire.plan import Plan
from gradwire.planner.search.predict import Prediction, Predictor


@dataclass(frozen=True)
class Mixture:
    """The parameters that need other codecs than the rest, with these, and the codecs' shares of the values.

    ``noise`` is the share of extra steps that the noise of all codecs may cost: the mean over all values.
    """

    gentler: Mapping[str, Codec]
    parts: Mapping[Codec, float]
    noise: float

    @classmethod
    def of(cls, codec: Codec, names: frozenset[str], lost: Lost, most: float) -> Mixture:
        """Return what parameters get that need another codec than ``codec``."""
        gentler = lost.gentler(codec, names, most)
        every = by_codec(dict.fromkeys(lost.counts, codec) | gentler)
        noise = sum(lost.noise(each, own) for each, own in every.items())
        parts = {each: lost.part(own) for each, own in by_codec(gentler).items()}
        return cls(gentler, parts, noise)

    @property
    def part(self) -> float:
        """The share of all values that have other codecs."""
        return sum(self.parts.values())

    @property
    def slack(self) -> float:
        """The largest share of a step by which the noise and the other codecs may change its time."""
        return self.noise + self.part

    def step_s(self, plan: Plan, predictor: Predictor, buckets: int) -> float:
        """Return the seconds of a step with ``plan``, whose codec is that of the other parameters.

        They are between those with either codec, by their shares of the values. For each other codec, one
        more exchange of a bucket costs something whatever its size, for each of its parameters, or for each
        bucket if those are fewer.
        """
        more_s = 0.0
        for codec, names in by_codec(self.gentler).items():
            more_s += min(len(names), buckets) * predictor.exchange_s(replace(plan, codec=codec), 1)
        return self._mixed(plan, predictor, lambda each: each.step_s) + more_s

    def nbytes(self, plan: Plan, predictor: Predictor) -> float:
        """Return the bytes of the rank that sends most."""
        return self._mixed(plan, predictor, lambda each: each.cost.wire_nbytes)

    def _mixed(self, plan: Plan, predictor: Predictor, measure: Callable[[Prediction], float]) -> float:
        own = measure(predictor.predict(plan))
        others = ((part, predictor.predict(replace(plan, codec=each))) for each, part in self.parts.items())
        return own + sum(part * (measure(other) - own) for part, other in others)
