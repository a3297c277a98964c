"""Decide for a plan: the least expected time to the same loss among the codecs that the contract admits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire.codecs import Codec
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.inputs.workload import Workload
from gradwire.planner.search.candidates import ALGORITHMS, Space
from gradwire.planner.search.exchange_times import Family
from gradwire.planner.search.predict import Prediction, Predictor
from gradwire.planner.search.select import UNCERTAINTY, choose
from gradwire.records import read_object
from gradwire.timing.replay.environment import Environment
from gradwire.units import format_duration, format_rate

STAY = 0.05
"""Another plan has to be better than the present one by more than this share."""


@dataclass(frozen=True)
class Decision:
    """What was decided.

    Attributes
    ----------
    plan
        What all ranks use from now on.
    step_s, uncompressed_s, compute_s
        Seconds of a step that are expected with it, with the fastest plan without compression, and of
        computation alone.
    reason
        The sentence that tells users of it.
    """

    plan: Plan
    step_s: float
    uncompressed_s: float
    compute_s: float
    reason: str

    def to_json(self) -> str:
        """Return it as a JSON object."""
        seconds = {name: getattr(self, name) for name in ("step_s", "uncompressed_s", "compute_s")}
        return json.dumps({"plan": json.loads(self.plan.to_json()), **seconds, "reason": self.reason})

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """Read what ``to_json`` wrote. Raises ``SpecError``."""
        values = read_object(text, "a decision")
        try:
            plan = Plan.from_json(json.dumps(values.pop("plan")))
            return cls(plan, **values)
        except (KeyError, TypeError) as error:
            raise SpecError(f"this is no decision: {error}") from error


def decide(
    environment: Environment,
    workload: Workload,
    world: int,
    lost: Mapping[Codec, float],
    most: float,
    present: Plan,
    algorithms: Sequence[str] = ALGORITHMS,
) -> Decision:
    """Return the decision.

    The expected time to a loss is that of a step, times the share of extra steps that the codec's noise may
    cost: an encoding that loses the share ``q`` of a gradient's norm adds ``q^2`` to its variance. Partial
    sums of k gradients are encoded in hop k, so over ``world`` ranks noise of ``q^2 (world + 1) / 2`` of a
    gradient's variance is added to that of the sum, which is ``world`` times one's; where steps are limited
    by the gradients' noise, they grow by at most that share (McCandlish et al., "An Empirical Model of
    Large-Batch Training", 2018, section 2).

    Parameters
    ----------
    environment
        The line, the host, and the costs of the codecs.
    workload
        The buckets, as parameters, the first to be exchanged last; and the seconds of computation.
    lost
        For each codec that may be chosen, the share of the norm that it loses of the parameter that loses
        most.
    most
        The largest such share that is admitted.
    present
        The plan in use, which stays unless another one is clearly better.
    """
    admitted = [codec for codec, share in lost.items() if share <= most or codec.EXACT]
    factors = {codec: 1 + lost[codec] ** 2 * (world + 1) / 2 for codec in admitted}
    predictor = Predictor(workload, world, Family(environment))
    space = Space(tuple(admitted), tuple(algorithms), buckets_nbytes=(FLOAT_NBYTES,), whole=False)
    slack = UNCERTAINTY + max(factors.values(), default=1.0) - 1
    found = choose(predictor, space, min(0.9, slack))

    def expected_s(each: Prediction) -> float:
        return each.step_s * factors.get(each.plan.codec, 1.0)

    def worthwhile(each: Prediction) -> bool:
        worth_s = (1 - UNCERTAINTY) * found.uncompressed.step_s
        return each.plan.codec.EXACT or expected_s(each) <= worth_s

    best = min(filter(worthwhile, (*found.ranking, found.uncompressed)), key=expected_s)
    staying = [each for each in found.ranking if _same(each.plan, present) and worthwhile(each)]
    if staying and expected_s(staying[0]) <= (1 + STAY) * expected_s(best):
        best = staying[0]
    plan = replace(best.plan, bucket_nbytes=None, residual=False)
    left_out = [str(codec) for codec, share in lost.items() if codec not in admitted]
    reason = (
        f"{plan.codec} over {plan.algorithm}, {format_duration(best.step_s)} a step expected, "
        f"{format_duration(found.uncompressed.step_s)} without compression, of which "
        f"{format_duration(best.compute_s)} are computation; the slowest line carries "
        f"{format_rate(environment.line.nbytes_per_s)}"
    )
    if left_out:
        reason += f"; {', '.join(left_out)} would lose more than {most:.0%} of a parameter's gradient"
    return Decision(plan, best.step_s, found.uncompressed.step_s, best.compute_s, reason)


def _same(plan: Plan, present: Plan) -> bool:
    """Return whether two plans exchange a bucket in the same way."""
    ways = [(each.codec, each.algorithm, each.segment_nbytes) for each in (plan, present)]
    return ways[0] == ways[1]
