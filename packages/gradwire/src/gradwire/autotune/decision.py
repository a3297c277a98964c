"""Decisions for a plan: their expected times, their comparison, and rank 0's choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gradwire.autotune.contract import RelativeErrors, by_codec, in_words, rules_for
from gradwire.autotune.pacing import Work, at_once
from gradwire.autotune.search import predicting, searching
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec, parse
from gradwire.fields import Source, of, real, rows, to_values
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.candidates import Space, Workload
from gradwire.planner.exchange_times import QUICK, Family
from gradwire.planner.predict import UNCERTAINTY, Prediction, Predictor
from gradwire.timing.environment import Environment
from gradwire.units import counted, format_duration, format_rate

STAYS = "stays, since no plan could be chosen"
"""The part of a decision's reason that says that rank 0 could not choose a plan."""
_SOURCE = Source("a decision", "remove the file, so the run measures again")


@dataclass(frozen=True)
class Decision:
    """A plan that a run uses from one step on, and its expected times.

    Attributes
    ----------
    plan
        The plan that all ranks use.
    step_s, uncompressed_s, compute_s
        The expected seconds of a step with this plan, of a step with the fastest plan without compression,
        and of computation alone. After a trial, the step times of tried plans are measured.
    reason
        The explanation for users, in one sentence.
    extra
        The share of extra steps that its encoding noise may cost.
    nbytes
        The bytes per step of the rank that sends the most.
    left_out
        The other codecs that break the contract for more than ``wide_share`` of the values.
    """

    plan: Plan
    step_s: float
    uncompressed_s: float
    compute_s: float
    reason: str
    extra: float = 0.0
    nbytes: float = 0.0
    left_out: tuple[str, ...] = ()

    @property
    def to_loss_s(self) -> float:
        """Seconds until training progresses as far as in one step without compression."""
        return self.step_s * (1 + self.extra)

    @property
    def in_short(self) -> str:
        """The codec and the algorithm, lanes, and whether some parameters have other codecs."""
        others = " and others" if self.plan.codecs else ""
        lanes = f" in {self.plan.lanes} lanes" if self.plan.lanes > 1 else ""
        return f"{self.plan.codec}{others} over {self.plan.algorithm}{lanes}"

    def in_words(self, hosts: int) -> str:
        """Return a short line for users about the plan between this number of hosts."""
        if STAYS in self.reason:
            return self.reason
        if self.plan.codec.EXACT and not self.plan.codecs:
            waits = max(1 - self.compute_s / self.step_s, 0.0) if self.step_s else 0.0
            return f"{100 * waits:.0f} % of a step waits for the network; not compressing"
        between = f" between {counted(hosts, 'host')}" if hosts > 1 else ""
        step, uncompressed = format_duration(self.step_s), format_duration(self.uncompressed_s)
        return f"{self.in_short}{between}: {step} a step expected, {uncompressed} without compression"

    def to_json(self) -> str:
        """Return the decision as the text of a JSON object."""
        return json.dumps(to_values(self))

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """Read the output of ``to_json``; ``left_out`` may be missing. Raises ``SpecError``."""
        return _SOURCE.of_json(text, cls.from_values)

    @classmethod
    def from_values(cls, values: object) -> Decision:
        """Read the parsed output of ``to_json``; ``left_out`` may be missing. Raises ``SpecError``."""
        kinds = {"plan": Plan.from_values, "left_out": rows(lambda spec: str(parse(spec)))}
        seconds = dict.fromkeys(("step_s", "uncompressed_s", "compute_s"), real(0.0, finite=False))
        return _SOURCE.read(values, of(cls, **kinds, **seconds))


def same_way(plan: Plan, present: Plan) -> bool:
    """Return whether two plans have the same codec, algorithm, segment size, and lanes.

    The codecs of single parameters are not compared.
    """
    ways = [(each.codec, each.algorithm, each.segment_nbytes, each.lanes) for each in (plan, present)]
    return ways[0] == ways[1]


def stays(present: Decision, best: Decision, same: float, config: AutoConfig = DEFAULT) -> bool:
    """Return whether the present plan is as good as the best one.

    It must be as fast, within the share ``same``, and send as few bytes, within ``stay_share``.
    """
    is_as_fast = present.to_loss_s <= (1 + same) * best.to_loss_s
    return is_as_fast and present.nbytes <= (1 + config.stay_share) * best.nbytes


def best_of(
    decisions: Iterable[Decision], same: float = DEFAULT.equal_share, config: AutoConfig = DEFAULT
) -> Decision:
    """Return the decision with the shortest time to a loss, or an equally fast one with fewer bytes.

    Among decisions whose times differ by at most the share ``same``, it has the smallest product of time and
    bytes. If other such decisions send as few bytes and add less noise, it is the best of them. Of decisions
    that differ only in lanes, it is the one with the fewest.
    """
    every = list(decisions)
    least_s = min(each.to_loss_s for each in every)
    as_fast = [each for each in every if each.to_loss_s <= (1 + same) * least_s]
    best = _leanest(as_fast)
    most = min(config.less_noise_share * best.extra, best.extra - config.least_saved_share)
    as_lean = (each for each in as_fast if each.nbytes <= (1 + config.stay_share) * best.nbytes)
    less_noise = [each for each in as_lean if each.extra <= most]
    best = _leanest(less_noise) if less_noise else best
    lanes = best.plan.lanes
    fewer = (
        each for each in as_fast if each.plan.lanes < lanes and replace(each.plan, lanes=lanes) == best.plan
    )
    return min(fewer, key=lambda it: it.plan.lanes, default=best)


def _leanest(decisions: Sequence[Decision]) -> Decision:
    return min(decisions, key=lambda it: it.to_loss_s * it.nbytes)


# The cost of a plan with several codecs, from the costs of plans with one of them.


@dataclass(frozen=True)
class Mixture:
    """The more precise codecs of some parameters, and the share of the values with each of these codecs.

    ``noise`` is the share of extra steps that the noise of all codecs may cost, a mean over all values.
    """

    gentler: Mapping[str, Codec]
    parts: Mapping[Codec, float]
    noise: float

    @classmethod
    def of(cls, codec: Codec, names: frozenset[str], lost: RelativeErrors) -> Mixture:
        """Return the mixture for ``codec``, which breaks the contract for the parameters in ``names``."""
        gentler = lost.gentler(codec, names)
        every = by_codec(dict.fromkeys(lost.counts, codec) | gentler)
        noise = sum(lost.noise(each, own) for each, own in every.items())
        parts = {each: lost.part(own) for each, own in by_codec(gentler).items()}
        return cls(gentler, parts, noise)

    @property
    def part(self) -> float:
        """The share of all values that have a more precise codec."""
        return sum(self.parts.values())

    @property
    def slack(self) -> float:
        """The largest relative change in step time that noise and the other codecs may cause."""
        return self.noise + self.part

    def step_s(self, plan: Plan, predictor: Predictor, buckets: int) -> float:
        """Return the seconds of a step with ``plan`` and with the more precise codecs of some parameters.

        The step times with each codec are weighted by the codecs' shares of the values. Each other codec
        adds the fixed cost of an exchange per parameter, or per bucket if there are fewer buckets.
        """
        more_s = 0.0
        for codec, names in by_codec(self.gentler).items():
            more_s += min(len(names), buckets) * predictor.exchange_s(replace(plan, codec=codec), 1)
        return self._mixed(plan, predictor, lambda each: each.step_s) + more_s

    def nbytes(self, plan: Plan, predictor: Predictor) -> float:
        """Return the bytes per step of the rank that sends the most."""
        return self._mixed(plan, predictor, lambda each: each.cost.wire_nbytes)

    def _mixed(self, plan: Plan, predictor: Predictor, measure: Callable[[Prediction], float]) -> float:
        own = measure(predictor.predict(plan))
        others = ((part, predictor.predict(replace(plan, codec=each))) for each, part in self.parts.items())
        return own + sum(part * (measure(other) - own) for part, other in others)


# The choice of a plan: the shortest expected time to the same loss among plans that meet the contract.


def decide(
    environment: Environment,
    workload: Workload,
    world: int,
    lost: Mapping[str, RelativeErrors],
    present: Plan,
    half: str | None = None,
    lanes: tuple[int, ...] = (1,),
) -> tuple[Decision, ...]:
    """Return the best decision first, then its rivals with a different algorithm or different codecs.

    The expected time to a loss is the step time, increased by the share of extra steps that encoding noise
    may cost: an exchange with the relative error ``q`` adds the share ``q^2`` to a gradient's variance; if
    gradient noise limits training, the number of steps grows by at most that share (McCandlish et al., "An
    Empirical Model of Large-Batch Training", 2018, section 2).

    Parameters for which a codec breaks the contract get other codecs (``Mixture``). The ``present`` plan
    stays unless another plan is clearly better; its pipeline stays in any case.

    Parameters
    ----------
    workload
        The buckets as parameters, in reverse order of their exchange, and the seconds of computation.
    lost
        The candidates' relative errors by algorithm, in order of preference; their limits are the same.
    half
        See ``CandidateRules``.
    lanes
        The candidate numbers of lanes.
    """
    return at_once(deciding(environment, workload, world, lost, present, half, lanes))


def deciding(
    environment: Environment,
    workload: Workload,
    world: int,
    lost: Mapping[str, RelativeErrors],
    present: Plan,
    half: str | None = None,
    lanes: tuple[int, ...] = (1,),
) -> Work[tuple[Decision, ...]]:
    """Find what ``decide`` returns, in pieces of a few milliseconds."""
    limits = next(iter(lost.values()))
    most, config = limits.most, limits.config
    mixtures = {
        (codec, algorithm): Mixture.of(codec, names, each)
        for algorithm, each in lost.items()
        for codec, names in each.admitted(present).items()
    }
    every = dict.fromkeys(codec for each in lost.values() for codec in each.shares)
    suited = {codec for codec, _ in mixtures}
    refused = [str(codec) for codec in every if codec not in suited]
    fitting = {codec for (codec, _), each in mixtures.items() if each.part <= config.wide_share}
    predictor = Predictor(workload, world, Family(environment, QUICK), half=half)
    space = Space(
        tuple(codec for codec in every if codec in suited),
        tuple(lost),
        (present.pipeline,),
        buckets_nbytes=(FLOAT_NBYTES,),
        whole=False,
        refused=set(product(suited, lost)) - mixtures.keys(),
        lanes=lanes,
    )
    slack = UNCERTAINTY + max((each.slack for each in mixtures.values()), default=0.0)

    def noisy_s(each: Prediction) -> float:
        return each.step_s * (1 + mixtures[each.plan.codec, each.plan.algorithm].noise)

    slack = min(config.most_slack, slack)
    found = yield from searching(predictor, space, present, slack, config, noisy_s)

    def decision(each: Prediction) -> Decision:
        mixture = mixtures[each.plan.codec, each.plan.algorithm]
        rules = rules_for(mixture.gentler)
        decided = Decision(
            plan=replace(each.plan, bucket_nbytes=None, residual=False, codecs=rules),
            step_s=mixture.step_s(each.plan, predictor, len(workload.counts)),
            uncompressed_s=found.uncompressed.step_s,
            compute_s=each.compute_s,
            reason="",
            extra=mixture.noise,
            nbytes=mixture.nbytes(each.plan, predictor),
            left_out=tuple(str(it) for it in every if it not in {*fitting, each.plan.codec}),
        )
        said = in_words(each.plan.codec, mixture.gentler, most)
        return replace(decided, reason=_reason(decided, environment, said, refused, most))

    options = list[Decision]()
    for each in found.ranking:
        for other in mixtures[each.plan.codec, each.plan.algorithm].parts:
            yield from predicting(predictor, replace(each.plan, codec=other))
        options.append(decision(each))
        yield None
    worth_s = (1 - UNCERTAINTY) * found.uncompressed.step_s
    worth = [each for each in options if each.plan.codec.EXACT or each.to_loss_s <= worth_s]
    best = best_of(worth, config.equal_share, config)
    staying = [each for each in worth if same_way(each.plan, present)]
    if staying and stays(staying[0], best, config.stay_share, config):
        best = staying[0]
    return best, *_rivals(best, options, worth, world, config)


def _rivals(
    best: Decision,
    options: Sequence[Decision],
    worth: Sequence[Decision],
    world: int,
    config: AutoConfig = DEFAULT,
) -> list[Decision]:
    """Return the fastest decisions of other kinds that may be as good as the best one.

    The order of preference is: no compression, if the best one compresses; a plan with far fewer bytes, in
    case times don't differ; a plan with a different kind of codec, and the best one with a different segment
    size, because costs of codecs and frames are hard to predict if ranks share cores; then other algorithms.
    Among plans that exchange the same frames, one is enough.
    """
    if best.step_s - best.compute_s <= config.exposed_share * best.step_s:
        return []
    close = sorted(options, key=lambda it: it.to_loss_s)
    close = [each for each in close if each.to_loss_s <= config.close_ratio * best.to_loss_s]
    exact = [each for each in close if each.plan.codec.EXACT and not best.plan.codec.EXACT]
    far_less = [each for each in close if each in worth and each.nbytes < config.far_less_share * best.nbytes]
    closer = [each for each in close if each.to_loss_s <= config.closer_ratio * best.to_loss_s]
    resized = [each for each in closer if each != best and each.in_short == best.in_short]
    others = [
        each for each in closer if not each.plan.codec.EXACT and each.plan.codec.name != best.plan.codec.name
    ]
    ways: dict[tuple[object, ...], Decision] = {}
    for each in (best, *close):
        ways.setdefault(_way(each), each)
    found = [best]
    for each in (*exact[:1], *far_less[:1], *others[:1], *resized[:1], *ways.values()):
        if len(found) < config.most_trials and all(
            _frames(each, world) != _frames(other, world) for other in found
        ):
            found.append(each)
    return sorted(found[1:], key=close.index)


def _frames(each: Decision, world: int) -> tuple[object, ...]:
    """Return a key that is equal for plans that exchange the same frames.

    Between two ranks, ring, pairwise, and butterfly exchange the same frames, and their predicted times are
    equal. Between more ranks, frames differ even if predicted times are equal.
    """
    way = "" if world == 2 else each.plan.algorithm
    return way, each.plan.codec, each.plan.segment_nbytes, each.step_s, each.nbytes


def _way(each: Decision) -> tuple[object, ...]:
    """Return the least predictable parts of a plan: algorithm, compression, other codecs, and lanes."""
    return each.plan.algorithm, each.plan.codec.EXACT, bool(each.plan.codecs), each.plan.lanes > 1


def _reason(
    each: Decision, environment: Environment, exceptions: str, refused: Sequence[str], most: float
) -> str:
    said = (
        f"{each.plan.codec} over {each.plan.algorithm}: expected step time {format_duration(each.step_s)}, "
        f"{format_duration(each.uncompressed_s)} without compression, "
        f"{format_duration(each.compute_s)} for computation alone; rate of the slowest link "
        f"{format_rate(environment.line.nbytes_per_s)}"
    )
    said += f"; {exceptions}" if exceptions else ""
    if refused:
        said += f"; {', '.join(refused)} would exceed a relative error of {most:.0%} for too many values"
    return said
