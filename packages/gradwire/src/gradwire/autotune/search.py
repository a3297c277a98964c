"""The search for a plan between two steps of a run: few predictions, one at a time.

The planner's search (``planner.predict.choose``) predicts every plan that may tie with the fastest, which
takes seconds. Here, trials decide between similar plans, so fewer predictions are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gradwire.autotune.pacing import Work
from gradwire.autotune.settings import AutoConfig
from gradwire.plan import Plan
from gradwire.planner.candidates import Space, candidates, in_lanes
from gradwire.planner.predict import Prediction, Predictor, is_exact


@dataclass(frozen=True)
class Found:
    """The predicted plans, the fastest first, and the fastest one without compression."""

    uncompressed: Prediction
    ranking: tuple[Prediction, ...]


def searching(
    predictor: Predictor,
    space: Space,
    present: Plan,
    slack: float,
    config: AutoConfig,
    wanted: Callable[[Prediction], float],
) -> Work[Found]:
    """Predict the plans that are most likely the fastest, in pieces of a few milliseconds.

    Without compression, all algorithms are predicted; with each codec, the ``most_algorithms`` with the
    smallest lower bounds, unless they are slower by more than ``slack``. They have the medium segment size.
    The plans with the smallest values of ``wanted`` are predicted with the other sizes, and with more lanes,
    too. The ``present`` codec and algorithm are always predicted.
    """
    groups = dict[tuple[str, str], list[Plan]]()
    for count, plan in enumerate(candidates(space, predictor.workload, predictor.world)):
        groups.setdefault((str(plan.encoding), plan.algorithm), []).append(plan)
        if count % config.plans_at_once == 0:
            yield None
    medium = [plans[:2][-1] for plans in groups.values()]
    exact, bounds = list[Prediction](), dict[Plan, float]()
    for plan in medium:
        if is_exact(plan):
            exact.append((yield from predicting(predictor, plan)))
            continue
        bounds[plan] = predictor.least_s(plan)
        if len(bounds) % config.plans_at_once == 0:
            yield None
    every, taken = [*exact], Counter[str]()
    fastest_s = min(each.to_loss_s for each in exact)
    for plan in sorted(bounds, key=bounds.__getitem__):
        is_present = (plan.encoding, plan.algorithm) == (present.encoding, present.algorithm)
        is_slow = bounds[plan] * (1 - slack) > fastest_s
        name = str(plan.encoding)
        if is_present or not (is_slow or taken[name] >= config.most_algorithms):
            taken[name] += 1
            every.append((yield from predicting(predictor, plan)))
            fastest_s = min(fastest_s, every[-1].to_loss_s)
    fastest = min(exact, key=lambda each: each.to_loss_s)
    best = [each for each in sorted(every, key=wanted) if each is not fastest]
    for each in (fastest, *best[: config.most_resized]):
        group = groups[str(each.plan.encoding), each.plan.algorithm]
        for plan in (
            *(other for other in group if other != each.plan),
            *in_lanes(each.plan, space, predictor.workload),
        ):
            found = yield from predicting(predictor, plan)
            every.append(found)
    exact = [each for each in every if is_exact(each.plan)]
    return Found(
        min(exact, key=lambda each: each.to_loss_s), tuple(sorted(every, key=lambda each: each.to_loss_s))
    )


def predicting(predictor: Predictor, plan: Plan) -> Work[Prediction]:
    """Predict one plan's step, in a piece of work for each size of bucket."""
    for _ in predictor.replays(plan):
        yield None
    return predictor.predict(plan)
