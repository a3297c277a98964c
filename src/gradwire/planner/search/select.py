"""Select the plan that is the fastest to a loss, or the simplest of those that may be as fast.

Candidates are sorted by a lower bound of their time and predicted in that order, until no remaining bound can
win or tie. Most candidates are therefore never replayed, and the choice equals that of an exhaustive search.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.codecs import Identity
from gradwire.plan import Plan
from gradwire.planner.search.candidates import Space, candidates
from gradwire.planner.search.predict import Prediction, Predictor

UNCERTAINTY = 0.03
"""The smallest assumed error of predictions: steps that differ by less count as equal."""


@dataclass(frozen=True)
class Selection:
    """The prediction for the chosen plan, and the candidates that it was chosen from.

    ``uncompressed`` is the fastest without compression, with which a codec's gain is compared. ``ranking``
    has all predictions, the fastest first; according to their lower bounds, the other candidates of those
    ``considered`` are slower by more than ``uncertainty``, the relative error that a prediction may have.
    """

    prediction: Prediction
    uncompressed: Prediction
    ranking: tuple[Prediction, ...]
    considered: int
    uncertainty: float = UNCERTAINTY

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.prediction.plan

    @property
    def ordered(self) -> tuple[Prediction, ...]:
        """The chosen plan's prediction, then all others, the fastest first: the rows of every table."""
        return self.prediction, *(each for each in self.ranking if each is not self.prediction)


def choose(predictor: Predictor, space: Space, uncertainty: float = UNCERTAINTY) -> Selection:
    """Return the choice among the plans of ``space``.

    A time (``Prediction.to_loss_s``) that is longer than the shortest by less than the share ``uncertainty``
    of itself ties with no compression, which wins over compression: that must be faster by more than the
    uncertainty, even if it needs a standard deviation more steps than predicted. Among plans of one kind only
    ``UNCERTAINTY`` counts as a tie, because a codec's measured cost is wrong for all its plans alike. There
    a pipeline of 1 wins over a longer one (which changes the training), then the earlier algorithm of
    ``space``, the earlier codec, fewer buckets, and larger segments, which have fewer frames; finally, the
    shorter time wins.
    """
    plans = list(candidates(space, predictor.workload, predictor.world))
    exact = _search(predictor, [plan for plan in plans if is_exact(plan)], uncertainty)
    lossy = [plan for plan in plans if not is_exact(plan)]
    every = exact + _search(predictor, lossy, uncertainty, _fastest_s(exact))
    worth_s = _fastest_s(exact) * (1 - uncertainty)
    worthwhile = [
        each for each in every if is_exact(each.plan) or each.to_loss_s + each.to_loss_deviation_s < worth_s
    ]
    return Selection(
        _simplest(worthwhile, space),
        min(exact, key=_time_s),
        tuple(sorted(every, key=_time_s)),
        len(plans),
        uncertainty,
    )


def _search(
    predictor: Predictor, plans: Iterable[Plan], uncertainty: float, fastest_s: float | None = None
) -> list[Prediction]:
    """Predict all plans that may be the fastest or tie with the fastest."""
    bounds = {plan: predictor.least_s(plan) for plan in plans}
    found: list[Prediction] = []
    for plan in sorted(bounds, key=bounds.__getitem__):
        if fastest_s is not None and bounds[plan] * (1 - uncertainty) > fastest_s:
            break
        found.append(predictor.predict(plan))
        time_s = _time_s(found[-1])
        fastest_s = time_s if fastest_s is None else min(fastest_s, time_s)
    return found


def _simplest(predictions: list[Prediction], space: Space) -> Prediction:
    fastest_s = _fastest_s(predictions)
    ties = [each for each in predictions if each.to_loss_s * (1 - UNCERTAINTY) <= fastest_s]
    return min(ties, key=lambda each: _preference(each, space))


def _preference(prediction: Prediction, space: Space) -> tuple[float, ...]:
    plan = prediction.plan
    return (
        not is_exact(plan),
        plan.pipeline,
        space.algorithms.index(plan.algorithm),
        space.codecs.index(plan.encoding),
        space.exchanges.index(plan.exchange),
        prediction.buckets,
        -plan.segment_nbytes,
        prediction.to_loss_s,
    )


def _fastest_s(predictions: list[Prediction]) -> float:
    return min(map(_time_s, predictions))


def _time_s(prediction: Prediction) -> float:
    return prediction.to_loss_s


def is_exact(plan: Plan) -> bool:
    """Return whether a plan compresses nothing: neither gradients nor, in a sharded exchange, weights."""
    return isinstance(plan.encoding, Identity) and not plan.is_sharded
