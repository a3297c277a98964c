"""A query: which plans it allows among so many ranks, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradwire.codecs import Identity, parse
from gradwire.planner.candidates import Workload, candidates
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import UNCERTAINTY, Predictor
from gradwire.planner.result import Query
from gradwire.timing.environment import Environment

Make = Callable[..., Environment]
LOSSY = (parse("bf16"), parse("quantize:8"))


def ask(environment: Environment, **others: object) -> Query:
    workload = Workload.of_count(200_000, backward_s=0.01)
    return replace(Query(workload, environment, LOSSY, ("ring", "star")), **others)  # type: ignore[arg-type]


def test_the_budget_admits_fewer_codecs_the_more_ranks_add_up_their_errors(environment: Make) -> None:
    """A lossy codec of these errs by 1e-5 an encoding, so by 3e-5 among 3 ranks and 4e-5 among 4."""
    query = ask(environment(), largest_error=3.5e-5)
    for world, admitted in ((3, True), (4, False)):
        assert [each.admitted for each in query.admissions(world)] == [admitted] * 2
        assert query.space(world).codecs == (Identity(), *(LOSSY if admitted else ()))
    assert isinstance(query.answer(4).plan.codec, Identity)


@pytest.mark.parametrize("rate", [1e6, 125e6, 1e10])
def test_the_answer_is_among_the_fastest_of_all_plans(rate: float, environment: Make) -> None:
    """The oracle predicts every plan, of which the search leaves most out."""
    query = ask(environment(rate))
    predictor = Predictor(query.workload, 3, Family(query.environment))
    every = [predictor.predict(plan) for plan in candidates(query.space(3), query.workload, 3)]
    answer, fastest_s = query.answer(3), min(each.step_s for each in every)
    assert answer.considered == len(every)
    assert answer.prediction in every
    assert answer.prediction.step_s * (1 - answer.uncertainty) <= fastest_s
    assert answer.ranking[0].step_s == fastest_s
    plain = min(each.step_s for each in every if isinstance(each.plan.codec, Identity))
    assert answer.uncompressed.step_s == plain


def test_repeats_that_disagree_widen_the_uncertainty_and_simplify_the_answer(environment: Make) -> None:
    query = ask(environment(30e6))
    quiet = query.answer(3)
    assert quiet.uncertainty == UNCERTAINTY
    assert not isinstance(quiet.plan.codec, Identity)
    host = replace(query.environment.host, disagreement=1e3)
    noisy = replace(query, environment=replace(query.environment, host=host)).answer(3)
    assert noisy.uncertainty > UNCERTAINTY
    assert isinstance(noisy.plan.codec, Identity), "no gain is sure"


def test_a_family_is_asked_instead_of_computing_again(environment: Make) -> None:
    query = ask(environment())
    family = Family(query.environment)
    assert query.answer(3, family) == query.answer(3)
    times = family.among(3)
    assert times is family.among(3)
