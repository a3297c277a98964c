"""Verdicts follow from figures and rules; altered figures change them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire.experiments.claim import (
    RATIO,
    SHARE,
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
)

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
        (at_least(2.0), None, False),
        (at_most(2.0), math.nan, False),
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


def test_a_model_is_never_called_a_measurement() -> None:
    claim = replace(RATIOS, is_modelled=True)
    assert claim.verdict is Verdict.MODELLED
    assert replace(claim, figures={"vgg": 1.0}).verdict is Verdict.NOT_REPRODUCED


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
