"""Decide for a plan: the least expected time to the same loss among those that keep the contract."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from gradwire.auto.contract import Lost, by_codec, in_words, rules_for
from gradwire.codecs import Codec
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.inputs.workload import Workload
from gradwire.planner.search.candidates import Space
from gradwire.planner.search.exchange_times import Family
from gradwire.planner.search.predict import Prediction, Predictor
from gradwire.planner.search.select import UNCERTAINTY, choose
from gradwire.records import read_object
from gradwire.timing.replay.environment import Environment
from gradwire.units import format_duration, format_rate

SAME = 0.05
"""Of plans whose expected times differ by less, the one with the fewest bytes is the best: predictions are no
closer, and bytes are sure."""
STAY = 0.05
"""Another plan has to be better than the present one by more than this share, in time or in bytes."""


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
    lost: Mapping[str, Lost],
    most: float,
    present: Plan,
    half: str | None = None,
) -> Decision:
    """Return the decision.

    The expected time to a loss is that of a step, times the share of extra steps that the codecs' noise may
    cost: an exchange that loses the share ``q`` of a gradient's norm adds ``q^2`` to its variance; where
    steps are limited by the gradients' noise, they grow by at most that share (McCandlish et al., "An
    Empirical Model of Large-Batch Training", 2018, section 2).

    Parameters of which a codec would lose too much get others. A step is expected to take a time between
    those with either codec, by their shares of the values, and for each other codec what one more exchange of
    a bucket costs whatever its size, for each of its parameters, or for each bucket if those are fewer.

    Parameters
    ----------
    environment
        The line, the host, and the costs of the codecs.
    workload
        The buckets, as parameters, the first to be exchanged last; and the seconds of computation.
    lost
        What exchanges with each codec that may be chosen lose of the parameters, by the algorithms that may
        be chosen, the preferred first.
    most
        The largest share that is admitted.
    present
        The plan in use, which stays unless another one is clearly better; its pipeline stays in any case.
    half
        See ``Form``.
    """
    mixtures = {
        (codec, algorithm): _Mixture.of(codec, names, each, most)
        for algorithm, each in lost.items()
        for codec, names in each.admitted(most, present).items()
    }
    every = dict.fromkeys(codec for each in lost.values() for codec in each.shares)
    suited = {codec for codec, _ in mixtures}
    predictor = Predictor(workload, world, Family(environment), half=half)
    space = Space(
        tuple(codec for codec in every if codec in suited),
        tuple(lost),
        (present.pipeline,),
        buckets_nbytes=(FLOAT_NBYTES,),
        whole=False,
        refused=set(product(suited, lost)) - mixtures.keys(),
    )
    slack = UNCERTAINTY + max((each.slack for each in mixtures.values()), default=0.0)
    found = choose(predictor, space, min(0.9, slack))

    def mixed(plan: Plan, measure: Callable[[Prediction], float]) -> float:
        """Return what a plan takes, by the shares of the values that its codecs have."""
        own = measure(predictor.predict(plan))
        others = mixtures[plan.codec, plan.algorithm].parts.items()
        return own + sum(
            part * (measure(predictor.predict(replace(plan, codec=codec))) - own) for codec, part in others
        )

    @cache
    def step_s(plan: Plan) -> float:
        more_s = 0.0
        for codec, names in by_codec(mixtures[plan.codec, plan.algorithm].gentler).items():
            exchanges = min(len(names), len(workload.counts))
            more_s += exchanges * predictor.exchange_s(replace(plan, codec=codec), 1)
        return mixed(plan, lambda each: each.step_s) + more_s

    def nbytes(each: Prediction) -> float:
        return mixed(each.plan, lambda each: each.cost.wire_nbytes)

    def expected_s(each: Prediction) -> float:
        return step_s(each.plan) * (1 + mixtures[each.plan.codec, each.plan.algorithm].noise)

    def worthwhile(each: Prediction) -> bool:
        worth_s = (1 - UNCERTAINTY) * found.uncompressed.step_s
        return each.plan.codec.EXACT or expected_s(each) <= worth_s

    worth = [*filter(worthwhile, (*found.ranking, found.uncompressed))]
    least_s = min(map(expected_s, worth))
    best = min((each for each in worth if expected_s(each) <= (1 + SAME) * least_s), key=nbytes)
    staying = [each for each in found.ranking if _same(each.plan, present) and worthwhile(each)]
    if staying and all(of(staying[0]) <= (1 + STAY) * of(best) for of in (expected_s, nbytes)):
        best = staying[0]
    mixture = mixtures[best.plan.codec, best.plan.algorithm]
    rules = rules_for(mixture.gentler)
    plan = replace(best.plan, bucket_nbytes=None, residual=False, codecs=rules)
    left_out = [str(codec) for codec in every if codec not in suited]
    exceptions = in_words(plan.codec, mixture.gentler, most)
    reason = (
        f"{plan.codec} over {plan.algorithm}, {format_duration(step_s(best.plan))} a step expected, "
        f"{format_duration(found.uncompressed.step_s)} without compression, of which "
        f"{format_duration(best.compute_s)} are computation; the slowest line carries "
        f"{format_rate(environment.line.nbytes_per_s)}"
    )
    reason += f"; {exceptions}" if exceptions else ""
    if left_out:
        reason += f"; {', '.join(left_out)} would lose more than {most:.0%} of a parameter's gradient"
    return Decision(plan, step_s(best.plan), found.uncompressed.step_s, best.compute_s, reason)


@dataclass(frozen=True)
class _Mixture:
    """The parameters that need other codecs than the rest, with these, and the codecs' shares of the values.

    ``noise`` is the share of extra steps that the noise of all codecs may cost: the mean over all values.
    """

    gentler: Mapping[str, Codec]
    parts: Mapping[Codec, float]
    noise: float

    @classmethod
    def of(cls, codec: Codec, names: frozenset[str], lost: Lost, most: float) -> _Mixture:
        gentler = lost.gentler(codec, names, most)
        every = by_codec(dict.fromkeys(lost.counts, codec) | gentler)
        noise = sum(lost.noise(each, own) for each, own in every.items())
        parts = {each: lost.part(own) for each, own in by_codec(gentler).items()}
        return cls(gentler, parts, noise)

    @property
    def slack(self) -> float:
        """The largest share of a step by which the noise and the other codecs may change its time."""
        return self.noise + sum(self.parts.values())


def _same(plan: Plan, present: Plan) -> bool:
    """Return whether two plans exchange a bucket in the same way."""
    ways = [(each.codec, each.algorithm, each.segment_nbytes) for each in (plan, present)]
    return ways[0] == ways[1]
