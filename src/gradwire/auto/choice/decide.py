"""Decide for a plan: the least expected time to the same loss among those that keep the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from gradwire.auto.choice.decision import Decision, best_of, same_way, stays
from gradwire.auto.choice.mixture import Mixture
from gradwire.auto.quality.contract import WIDE, Lost, in_words, rules_for
from gradwire.auto.quality.losses import FAR_LESS
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.inputs.workload import Workload
from gradwire.planner.search.candidates import Space
from gradwire.planner.search.exchange_times import Family
from gradwire.planner.search.predict import Prediction, Predictor
from gradwire.planner.search.select import UNCERTAINTY, choose
from gradwire.timing.replay.environment import Environment
from gradwire.units import format_duration, format_rate

MOST_TRIED = 4
"""So many plans are compared by steps that were really taken, at most."""
_CLOSE = 1.5
"""Those whose expected times are up to so many times the least one. Predictions are as wrong as that where
hosts share cores."""
_CLOSER = 1.25
"""One with another codec, or in other segments, is tried only if it is expected within so many times: most
other codecs send more bytes."""
_EXPOSED = 0.1
"""If computation hides all but this share of a step, plans are as good as each other, and none is tried."""


def decide(
    environment: Environment,
    workload: Workload,
    world: int,
    lost: Mapping[str, Lost],
    most: float,
    present: Plan,
    half: str | None = None,
) -> tuple[Decision, ...]:
    """Return the decision, and those that may be as good, of other kinds: with another algorithm or codecs.

    The expected time to a loss is that of a step, times the share of extra steps that the codecs' noise may
    cost: an exchange that loses the share ``q`` of a gradient's norm adds ``q^2`` to its variance; where
    steps are limited by the gradients' noise, they grow by at most that share (McCandlish et al., "An
    Empirical Model of Large-Batch Training", 2018, section 2).

    Parameters of which a codec would lose too much get others (``Mixture``).

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
        (codec, algorithm): Mixture.of(codec, names, each, most)
        for algorithm, each in lost.items()
        for codec, names in each.admitted(most, present).items()
    }
    every = dict.fromkeys(codec for each in lost.values() for codec in each.shares)
    suited = {codec for codec, _ in mixtures}
    refused = [str(codec) for codec in every if codec not in suited]
    fitting = {codec for (codec, _), each in mixtures.items() if each.part <= WIDE}
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

    options = [decision(each) for each in found.ranking]
    worth_s = (1 - UNCERTAINTY) * found.uncompressed.step_s
    worth = [each for each in options if each.plan.codec.EXACT or each.to_loss_s <= worth_s]
    best = best_of(worth)
    staying = [each for each in worth if same_way(each.plan, present)]
    if staying and stays(staying[0], best):
        best = staying[0]
    return best, *_rivals(best, options, worth, world)


def _rivals(
    best: Decision, options: Sequence[Decision], worth: Sequence[Decision], world: int
) -> list[Decision]:
    """Return the fastest decisions of other kinds that may be as good as the best one.

    Those are no compression, if the best one compresses; one that sends far less, since times may not differ
    at all; one with a codec of another name, and the best one in other segments, since what codecs and frames
    take where ranks share cores is hard to predict; and then other ways to exchange. Of plans that exchange
    the same frames, one is enough.
    """
    if best.step_s - best.compute_s <= _EXPOSED * best.step_s:
        return []
    close = sorted(options, key=lambda it: it.to_loss_s)
    close = [each for each in close if each.to_loss_s <= _CLOSE * best.to_loss_s]
    exact = [each for each in close if each.plan.codec.EXACT and not best.plan.codec.EXACT]
    far_less = [each for each in close if each in worth and each.nbytes < FAR_LESS * best.nbytes]
    closer = [each for each in close if each.to_loss_s <= _CLOSER * best.to_loss_s]
    resized = [each for each in closer if each != best and each.in_short == best.in_short]
    others = [
        each for each in closer if not each.plan.codec.EXACT and each.plan.codec.name != best.plan.codec.name
    ]
    ways: dict[tuple[str, bool, bool], Decision] = {}
    for each in (best, *close):
        ways.setdefault(_way(each), each)
    found = [best]
    for each in (*exact[:1], *far_less[:1], *others[:1], *resized[:1], *ways.values()):
        if len(found) < MOST_TRIED and all(_frames(each, world) != _frames(other, world) for other in found):
            found.append(each)
    return sorted(found[1:], key=close.index)


def _frames(each: Decision, world: int) -> tuple[object, ...]:
    """Return what is equal for plans that exchange the same frames.

    Two ranks do so in a ring, pairwise, and over a butterfly, which are expected to take exactly as long.
    More ranks don't, although what they are expected to take may be the same, too.
    """
    way = "" if world == 2 else each.plan.algorithm
    return way, each.plan.codec, each.plan.segment_nbytes, each.step_s, each.nbytes


def _way(each: Decision) -> tuple[str, bool, bool]:
    """Return what predictions know least about: the messages of an algorithm, and of several codecs."""
    return each.plan.algorithm, each.plan.codec.EXACT, bool(each.plan.codecs)


def _reason(
    each: Decision, environment: Environment, exceptions: str, refused: Sequence[str], most: float
) -> str:
    said = (
        f"{each.plan.codec} over {each.plan.algorithm}, {format_duration(each.step_s)} a step expected, "
        f"{format_duration(each.uncompressed_s)} without compression, of which "
        f"{format_duration(each.compute_s)} are computation; the slowest line carries "
        f"{format_rate(environment.line.nbytes_per_s)}"
    )
    said += f"; {exceptions}" if exceptions else ""
    if refused:
        said += f"; {', '.join(refused)} would lose more than {most:.0%} of a parameter's gradient"
    return said
