"""The choice of a plan: the shortest expected time to the same loss among plans that meet the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gradwire.autotune.contract import RelativeErrors, by_codec, in_words, rules_for
from gradwire.autotune.costs import Work
from gradwire.autotune.decision import Decision, best_of, same_way, stays
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.codecs import Codec
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.candidates import Space, Workload, candidates, in_lanes
from gradwire.planner.exchange_times import QUICK, Family
from gradwire.planner.predict import UNCERTAINTY, Prediction, Predictor, is_exact
from gradwire.timing.environment import Environment
from gradwire.units import format_duration, format_rate


@dataclass(frozen=True)
class Mixture:
    """The more precise codecs of some parameters, and the share of the values with each of these codecs.

    ``noise`` is the share of extra steps that the noise of all codecs may cost, averaged over all values.
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
        """The share of all values that use a more precise codec."""
        return sum(self.parts.values())

    @property
    def slack(self) -> float:
        """The largest relative change in step time that noise and the more precise codecs may cause."""
        return self.noise + self.part

    def step_s(self, plan: Plan, predictor: Predictor, buckets: int) -> float:
        """Return the seconds of a step with ``plan`` and with the more precise codecs of some parameters.

        The step times with each codec are weighted by the codec's share of the values. Each more precise
        codec adds the fixed cost of its frames per parameter, or per bucket if there are fewer buckets. The
        frames of all codecs are sent in the same steps of the schedule, so more codecs add no latency.
        """
        more_s = 0.0
        for codec, names in by_codec(self.gentler).items():
            more_s += min(len(names), buckets) * predictor.work_s(replace(plan, codec=codec), 1)
        return self._mixed(plan, predictor, lambda each: each.step_s) + more_s

    def nbytes(self, plan: Plan, predictor: Predictor) -> float:
        """Return the bytes per step of the rank that sends the most."""
        return self._mixed(plan, predictor, lambda each: each.cost.wire_nbytes)

    def _mixed(self, plan: Plan, predictor: Predictor, measure: Callable[[Prediction], float]) -> float:
        own = measure(predictor.predict(plan))
        others = ((part, predictor.predict(replace(plan, codec=each))) for each, part in self.parts.items())
        return own + sum(part * (measure(other) - own) for part, other in others)


# The planner's search (``planner.predict.choose``) predicts every plan that may tie with the fastest, which
# takes seconds. Here, trials decide between similar plans, so fewer predictions are enough.


def search(
    predictor: Predictor,
    space: Space,
    present: Plan,
    slack: float,
    config: AutoConfig,
    wanted: Callable[[Prediction], float],
) -> Work[list[Prediction]]:
    """Predict the plans that are most likely to be the fastest, and return them, the fastest first.

    Plans without compression are predicted with all algorithms. Each codec is predicted with the
    ``most_algorithms`` algorithms that have the smallest lower bounds, unless a bound exceeds the fastest
    time by more than ``slack``. The present codec is also predicted with the ``present`` algorithm. The
    ``most_resized`` plans with the smallest values of ``wanted``, and the fastest plan without compression,
    are also predicted with other segment sizes and with more lanes.
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
            exact.append((yield from predict(predictor, plan)))
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
            every.append((yield from predict(predictor, plan)))
            fastest_s = min(fastest_s, every[-1].to_loss_s)
    fastest = min(exact, key=lambda each: each.to_loss_s)
    best = [each for each in sorted(every, key=wanted) if each is not fastest]
    for each in (fastest, *best[: config.most_resized]):
        resized = [*groups[str(each.plan.encoding), each.plan.algorithm]]
        resized.remove(each.plan)
        for plan in (*resized, *in_lanes(each.plan, space, predictor.workload)):
            found = yield from predict(predictor, plan)
            every.append(found)
    return sorted(every, key=lambda each: each.to_loss_s)


def predict(predictor: Predictor, plan: Plan) -> Work[Prediction]:
    """Predict a plan's step; each bucket size is one piece of work."""
    for _ in predictor.replays(plan):
        yield None
    return predictor.predict(plan)


def decide(
    environment: Environment,
    workload: Workload,
    world: int,
    lost: Mapping[str, RelativeErrors],
    present: Plan,
    half: str | None = None,
    lanes: tuple[int, ...] = (1,),
) -> Work[tuple[Decision, ...]]:
    """Return the best decision first, then its rivals with a different algorithm or different codecs.

    Pieces of this work take a few milliseconds.

    The expected time to a loss is the step time, increased by the share of extra steps that encoding noise
    may cost. An exchange with the relative error ``q`` increases a gradient's variance by the share ``q^2``.
    If gradient noise limits training, the number of steps grows by at most this share (McCandlish et al., "An
    Empirical Model of Large-Batch Training", 2018, section 2).

    Parameters for which a codec breaks the contract get other codecs (``Mixture``). The ``present`` plan
    stays unless another plan is clearly better; its pipeline stays in any case.

    The parameters of ``workload`` are buckets, in reverse order of their exchange. ``lost`` has the
    candidates' relative errors by algorithm, in order of preference, all with the same limits. ``half`` is as
    in ``CandidateRules``, and ``lanes`` are the candidate numbers of lanes.
    """
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
    ranking = yield from search(predictor, space, present, slack, config, noisy_s)
    uncompressed_s = next(each.step_s for each in ranking if is_exact(each.plan))
    options = list[Decision]()
    for each in ranking:
        mixture = mixtures[each.plan.codec, each.plan.algorithm]
        for other in mixture.parts:
            yield from predict(predictor, replace(each.plan, codec=other))
        decided = Decision(
            plan=replace(each.plan, bucket_nbytes=None, residual=False, codecs=rules_for(mixture.gentler)),
            step_s=mixture.step_s(each.plan, predictor, len(workload.counts)),
            uncompressed_s=uncompressed_s,
            compute_s=each.compute_s,
            reason="",
            extra=mixture.noise,
            nbytes=mixture.nbytes(each.plan, predictor),
            left_out=tuple(str(it) for it in every if it not in {*fitting, each.plan.codec}),
        )
        said = in_words(each.plan.codec, mixture.gentler, most)
        options.append(replace(decided, reason=_reason(decided, environment, said, refused, most)))
        yield None
    worth_s = (1 - UNCERTAINTY) * uncompressed_s
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
    """Return the fastest decisions of other kinds that may be as good as the best one, the fastest first.

    If there are more than ``most_trials`` decisions, the first ones of this list are returned:

    1. no compression, if the best decision compresses;
    2. a plan with far fewer bytes, in case the times don't differ;
    3. a different kind of codec, and the best plan with a different segment size, because the costs of codecs
       and frames are hard to predict if ranks share cores;
    4. other algorithms.

    If several plans exchange the same frames, only the first plan is returned.
    """
    if best.step_s - best.compute_s <= config.exposed_share * best.step_s:
        return []
    close = sorted(options, key=lambda it: it.to_loss_s)
    close = [each for each in close if each.to_loss_s <= config.close_ratio * best.to_loss_s]
    exact = [each for each in close if each.plan.codec.EXACT and not best.plan.codec.EXACT]
    far_less = [each for each in close if each in worth and each.nbytes < config.far_less_share * best.nbytes]
    closer = [each for each in close if each.to_loss_s <= config.closer_ratio * best.to_loss_s]
    resized = [each for each in closer if each != best and each.in_short == best.in_short]
    lossy = (each for each in closer if not each.plan.codec.EXACT)
    others = [each for each in lossy if each.plan.codec.name != best.plan.codec.name]
    ways: dict[tuple[object, ...], Decision] = {}  # by the least predictable facts of a plan
    for each in (best, *close):
        plan = each.plan
        ways.setdefault((plan.algorithm, plan.codec.EXACT, bool(plan.codecs), plan.lanes > 1), each)
    found = {_frames(best, world): best}
    for each in (*exact[:1], *far_less[:1], *others[:1], *resized[:1], *ways.values()):
        if len(found) < config.most_trials:
            found.setdefault(_frames(each, world), each)
    return sorted([*found.values()][1:], key=close.index)


def _frames(each: Decision, world: int) -> tuple[object, ...]:
    """Return a key that is equal for plans that exchange the same frames.

    Between two ranks, ring, pairwise, and butterfly exchange the same frames, and their predicted times are
    equal. Between more ranks, frames differ even if predicted times are equal.
    """
    way = "" if world == 2 else each.plan.algorithm
    return way, each.plan.codec, each.plan.segment_nbytes, each.step_s, each.nbytes


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
