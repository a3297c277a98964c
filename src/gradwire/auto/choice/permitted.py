"""Whether a run may use a decision that was saved: the user's present settings come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradwire.auto.choice.decision import Decision
from gradwire.auto.form import Form
from gradwire.auto.settings import Auto
from gradwire.codecs.rules import check_names
from gradwire.errors import SpecError

_ROUNDING = 1 + 1e-6
_CHOSEN = ("codec", "codecs", "algorithm", "segment_nbytes")
"""The fields of a plan that are chosen; the others are the same in all plans of a run."""


def refusal(decision: Decision, settings: Auto, form: Form, names: Iterable[str]) -> str:
    """Return why a run of a model with these parameters must not use a decision; empty if it may.

    The plan has to be one that the run could choose itself. What its exchanges lose of each parameter is
    known only by the mean of the squares, which is a bound for every plan that keeps the contract.
    """
    plan, candidates, most = decision.plan, settings.candidates, settings.max_lost_norm
    codecs = (plan.codec, *(rule.codec for rule in plan.rules))
    other = next((each for each in codecs if each not in candidates), None)
    if other is not None:
        return f"expected codecs among {', '.join(map(str, candidates))}, got {other}"
    if plan.algorithm not in form.algorithms:
        return f"expected an algorithm among {', '.join(form.algorithms)}, got {plan.algorithm}"
    if plan.rules and not form.most_excepted:
        return "expected one codec for all parameters, got another one for some"
    common = replace(settings.first_plan, pipeline=form.pipeline)
    if plan != replace(common, **{name: getattr(plan, name) for name in _CHOSEN}):
        return f"expected {common.to_json()} apart from {', '.join(_CHOSEN)}, got {plan.to_json()}"
    if not 0 <= decision.extra <= most**2 * _ROUNDING:
        return (
            f"expected a loss of at most {most:g} of a gradient's norm, got {abs(decision.extra) ** 0.5:.3g}"
        )
    try:
        check_names(plan.rules, names)
    except SpecError as error:
        return str(error)
    return ""
