"""Explain in sentences why a plan was chosen."""

from __future__ import annotations

from gradwire.codecs import Codec, Identity
from gradwire.codecs.wrappers import Projected, Scaled
from gradwire.plan import Plan
from gradwire.planner.predict import UNCERTAINTY, Prediction, Ranking, is_exact
from gradwire.units import format_duration


def explain(ranking: Ranking) -> str:
    """Return the reasons for a choice as sentences: its gain, extra steps, ties, and where the time goes."""
    compressed = not is_exact(ranking.plan)
    sentences = [_gain(ranking) if compressed else _no_compression(ranking)]
    sentences += [
        *_extra_steps(ranking.prediction),
        *_tie(ranking),
        *_noise(ranking.uncertainty),
        _where_the_time_goes(ranking.prediction),
    ]
    if ranking.plan.pipeline > 1:
        late = ranking.plan.pipeline - 1
        averages = "the average is in flight" if late == 1 else f"the averages of {late} steps are in flight"
        sentences.append(
            f"The pipeline computes while {averages}. In the meantime, each host updates with its own "
            "gradients (eager updates, included in compute), so training learns about as fast as "
            "synchronous training."
        )
    return " ".join(sentences)


def name_plan(plan: Plan) -> str:
    """Return a plan in a few words."""
    pipeline = f", pipeline {plan.pipeline}" if plan.pipeline > 1 else ""
    sharded = ", sharded" if plan.is_sharded else ""
    lanes = f", {plan.lanes} lanes" if plan.lanes > 1 else ""
    return f"{name_coding(plan.encoding)} over {plan.algorithm}{pipeline}{lanes}{sharded}"


LANES_LEGEND = " L: lanes, the number of buckets exchanged concurrently."
"""The sentence that is added to a table's legend if a plan in the table uses several lanes."""


def name_in_table(plan: Plan) -> str:
    """Return a plan as the cell of a table: its encoding, algorithm, and pipeline or lanes."""
    lanes = f" L={plan.lanes}" if plan.lanes > 1 else ""
    more = " sharded" if plan.is_sharded else f" K={plan.pipeline}" if plan.pipeline > 1 else lanes
    return f"{name_coding(plan.encoding)} {plan.algorithm}{more}"


def name_coding(encoding: Codec) -> str:
    """Return a plan's encoding in a few words."""
    if isinstance(encoding, Scaled):
        return f"{name_coding(encoding.codec)} scaled"
    return f"{encoding.codec} in NICs" if isinstance(encoding, Projected) else str(encoding)


def _extra_steps(chosen: Prediction) -> list[str]:
    if not chosen.extra.share:
        return []
    share, deviation = 100 * chosen.extra.share, 100 * chosen.extra.deviation
    return [
        f"The plan is expected to need {share:.1f} % more steps (± {deviation:.1f} %) to reach the same "
        f"loss, so its step counts as {format_duration(chosen.to_loss_s)}."
    ]


def _gain(ranking: Ranking) -> str:
    chosen, plain = ranking.prediction, ranking.uncompressed
    return (
        f"{name_plan(chosen.plan)}: a step of {format_duration(chosen.step_s)}; the fastest plan without "
        f"compression ({name_plan(plain.plan)}) takes {format_duration(plain.step_s)}, "
        f"{plain.step_s / chosen.step_s:.2f} times as long."
    )


def _no_compression(ranking: Ranking) -> str:
    chosen, plain = ranking.prediction, ranking.uncompressed
    begin = f"no compression: {name_plan(chosen.plan)} takes {format_duration(chosen.to_loss_s)} a step"
    others = [each for each in ranking.codecs if not isinstance(each.codec, Identity)]
    if not others:
        return f"{begin}, and no other codec was offered."
    if not any(each.admitted for each in others):
        return f"{begin}, and no other codec is within the accuracy budget."
    best = next((each for each in ranking.ranking if not is_exact(each.plan)), None)
    least = 1 - ranking.uncertainty
    if (
        best is None or best.to_loss_s * least > plain.to_loss_s
    ):  # unpredicted plans may be faster than `best`
        return f"{begin}, and every plan with compression takes longer."
    percent = 100 * (1 - best.to_loss_s / plain.to_loss_s)
    than = "" if plain is chosen else f" than {name_plan(plain.plan)}"
    compared = f"{percent:.1f} % less{than}" if percent > 0 else f"{-percent:.1f} % more{than}"
    best_step = f"{format_duration(best.to_loss_s)} with compression ({name_plan(best.plan)})"
    reason = f"{begin}, and at best {best_step}, {compared}"
    if percent > 0:
        percent = 100 * ranking.uncertainty
        reason += f"; a codec must gain more than {percent:.0f} %, the uncertainty of predictions"
    return f"{reason}."


def _tie(ranking: Ranking) -> list[str]:
    """Return the reason why a faster plan of the same kind wasn't chosen, or [] without such a plan."""
    chosen, kind = ranking.prediction, is_exact(ranking.plan)
    same = (each for each in ranking.ranking if is_exact(each.plan) == kind)
    fastest = next(same, chosen)
    if fastest.to_loss_s >= chosen.to_loss_s:
        return []
    return [
        f"The fastest {'uncompressed' if kind else 'compressed'} plan ({name_plan(fastest.plan)}) takes "
        f"{format_duration(fastest.to_loss_s)}; plans within {100 * UNCERTAINTY:.0f} % count as equal, and "
        "the simpler plan is chosen."
    ]


def _noise(uncertainty: float) -> list[str]:
    if uncertainty <= UNCERTAINTY:
        return []
    return [
        f"Repeated calibrations disagree, so step times may be off by {100 * uncertainty:.0f} %; measure on "
        "an idle machine for better predictions."
    ]


def _where_the_time_goes(chosen: Prediction) -> str:
    if chosen.exposed_s <= 1e-6 * chosen.step_s:
        return "Computation hides the exchange."
    terms = {
        "waiting for the network": chosen.cost.wait_s,
        "encoding": chosen.cost.encode_s,
        "decoding and adding": chosen.cost.decode_s,
        "handling frames": chosen.cost.handling_s,
    }
    largest = max(terms, key=terms.__getitem__)
    exchange, exposed = format_duration(chosen.exchange_s), format_duration(chosen.exposed_s)
    shown = f"{'All' if exchange == exposed else exposed} of the exchange's {exchange} are"
    part = "most" if 2 * terms[largest] > chosen.exchange_s else "the largest part"
    return f"{shown} exposed; {part} of the exchange is {largest} ({format_duration(terms[largest])})."
