"""Verdicts follow from figures and rules; altered figures change them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire_lab.experiments.claim import (
    RATIO,
    SHARE,
    Basis,
    Bound,
    Claim,
    Explanation,
    Published,
    Verdict,
    at_least,
    at_most,
    near,
    only,
    shown,
    within,
)
from gradwire_lab.experiments.learning import Goal, Trainings

RATIOS = Claim("ratio", {"vgg": 4.0, "resnet": 2.0}, at_least(3.0), unit=RATIO)


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (at_least(2.0), 2.0, True),
        (at_least(2.0), 1.999, False),
        (at_most(2.0), 2.0, True),
        (at_most(2.0), 2.001, False),
        (near(10.0, 0.1), 9.0, True),
        (near(-10.0, 0.1), -11.0, True),
        (near(-10.0, 0.1), -11.1, False),
        (within((-2.0, 4.0), 0.25), 5.0, True),
        (within((-2.0, 4.0), 0.25), -2.5, True),
        (within((-2.0, 4.0), 0.25), 5.01, False),
        (within((-2.0, 4.0), 0.25), -2.51, False),
        (at_least(2.0), None, False),
        (at_most(2.0), math.nan, False),
        (at_least(2.0), math.inf, False),
        (at_most(2.0), -math.inf, False),
        (Bound(), math.nan, False),
    ],
)
def test_a_bound_holds_or_not(bound: Bound, value: float | None, holds: bool) -> None:
    assert bound.holds(value) is holds


def test_a_claim_is_about_the_mean_or_about_each_figure() -> None:
    assert RATIOS.mean == 3.0
    assert RATIOS.verdict is Verdict.REPRODUCED
    assert replace(RATIOS, of_each=True).verdict is Verdict.NOT_REPRODUCED
    assert replace(RATIOS, figures={"vgg": 4.0, "resnet": 1.9}).verdict is Verdict.NOT_REPRODUCED


def test_a_missing_figure_is_never_reproduced() -> None:
    for figures in ({"vgg": 4.0, "resnet": None}, {"vgg": math.nan}, {}):
        assert replace(RATIOS, figures=figures).verdict is Verdict.NOT_REPRODUCED
        assert replace(RATIOS, figures=figures, of_each=True).verdict is Verdict.NOT_REPRODUCED


def test_an_explanation_has_a_bound_of_its_own() -> None:
    claim = Claim(
        "error", only(0.007), at_most(0.001), otherwise=Explanation("it ends there", at_most(2**-7))
    )
    assert claim.verdict is Verdict.EXPLAINED
    assert replace(claim, figures=only(0.0009)).verdict is Verdict.REPRODUCED
    assert replace(claim, figures=only(0.008)).verdict is Verdict.NOT_REPRODUCED


@pytest.mark.parametrize("basis", [Basis.MODELLED, Basis.CALIBRATED, Basis.ARITHMETIC])
def test_what_was_not_measured_is_never_called_reproduced(basis: Basis) -> None:
    claim = replace(RATIOS, basis=basis)
    assert str(claim.verdict) == str(basis)
    assert replace(claim, figures={"vgg": 1.0}).verdict is Verdict.NOT_REPRODUCED


def trainings(own: float, exact: float, seeds: int = 3) -> Trainings:
    goal = Goal(0.1, 0.98, "the paper's table")
    return Trainings("INC+C", [own] * seeds, [exact] * seeds, goal)


def test_figures_of_dead_trainings_count_for_nothing() -> None:
    claim = replace(RATIOS, rests_on=[trainings(0.95, 0.96)])
    assert claim.verdict is Verdict.REPRODUCED
    for own, exact in ((0.15, 0.93), (0.10, 0.10), (0.15, 0.16), (0.90, 0.93), (math.nan, 0.93)):
        dead = replace(RATIOS, rests_on=[trainings(0.95, 0.96), trainings(own, exact)])
        assert dead.verdict is Verdict.DID_NOT_LEARN
        assert "did not learn" in dead.explained
        assert "INC+C" in dead.explained
        # Neither an explanation nor another basis makes them count.
        excused = replace(
            dead, otherwise=Explanation("small gradients", Bound()), basis=Basis.CALIBRATED, wanted=Bound()
        )
        assert excused.verdict is Verdict.DID_NOT_LEARN


def test_a_declared_failure_is_judged_by_its_rule() -> None:
    declared = replace(trainings(0.15, 0.93), expected_failure="the paper's pipeline diverges at 0.9")
    assert replace(RATIOS, rests_on=[declared]).verdict is Verdict.REPRODUCED


def test_fewer_than_three_seeds_are_too_few() -> None:
    claim = replace(RATIOS, rests_on=[trainings(0.95, 0.96, seeds=2)])
    assert claim.verdict is Verdict.TOO_SHORT
    assert "because INC+C has 2 trainings; a verdict needs 3 of each, for an interval" in claim.explained
    failed = replace(claim, wanted=at_least(9.0))
    assert failed.verdict is Verdict.NOT_REPRODUCED
    reason = Explanation("rates are low", at_least(2.0))
    assert replace(failed, better=reason).verdict is Verdict.TOO_SHORT, "not exceeded"
    assert replace(failed, otherwise=reason).verdict is Verdict.TOO_SHORT, "not explained"


def test_fewer_than_three_exchanges_are_too_few() -> None:
    once = replace(RATIOS, samples=1)
    assert once.verdict is Verdict.TOO_SHORT
    assert "because a figure was measured 1 time; a verdict needs 3 of each" in once.explained
    assert replace(RATIOS, samples=3).verdict is Verdict.REPRODUCED
    assert replace(once, wanted=at_least(9.0)).verdict is Verdict.NOT_REPRODUCED


def test_a_figure_of_a_training_that_failed_as_declared_counts_for_nothing() -> None:
    failed = replace(RATIOS, declared="Pipe-SGD ends at 0.1")
    assert failed.verdict is Verdict.DECLARED
    assert failed.explained.endswith("failed as declared, Pipe-SGD ends at 0.1")
    assert replace(failed, rests_on=[trainings(0.15, 0.15)]).verdict is Verdict.DID_NOT_LEARN


def test_better_than_published_needs_a_reason() -> None:
    claim = Claim("slope", only(-0.7), near(-0.5, 0.2), unit="")
    assert claim.verdict is Verdict.NOT_REPRODUCED
    better = replace(claim, better=Explanation("the rate is a bound from above.", at_most(-0.4)))
    assert better.verdict is Verdict.EXCEEDED
    assert better.explained == "slope: exceeded, because the rate is a bound from above."
    assert replace(better, figures=only(-0.3)).verdict is Verdict.NOT_REPRODUCED


def test_what_was_not_tried_says_why() -> None:
    claim = replace(RATIOS, figures=only(None), not_run="the package cramjam is not installed.")
    assert claim.verdict is Verdict.NOT_RUN
    assert claim.explained == "ratio: not run, the package cramjam is not installed."


def test_figures_and_rules_in_words() -> None:
    assert [shown(value, SHARE) for value in (0.5, -0.031)] == ["50.0%", "-3.1%"]
    assert [shown(value, "s") for value in (12.0, -3.0, 0.0, 2e-6)] == [
        "12 s",
        "-3 s",
        "0.000 s",
        "2.0e-06 s",
    ]
    assert at_least(3.2).in_words(RATIO) == ">= 3.20x"
    assert at_most(0.01).in_words(SHARE) == "<= 1.0%"
    assert near(2.0, 0.25).in_words("s") == "1.5 s to 2.5 s"
    assert near(8.0, 1e-9).in_words("") == "8"
    assert Published("figure 1", (2.2, 3.1)).in_words(RATIO) == "2.20x to 3.10x"
    assert Published("figure 1", 0.5).in_words(SHARE) == "50.0%"
    assert Published("figure 1").in_words(SHARE) == "in words"
