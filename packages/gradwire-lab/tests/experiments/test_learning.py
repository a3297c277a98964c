"""Trainings count if the exact one learned and the other stays near it."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from gradwire_lab.experiments.learning import Goal, Trainings, first_steps

GOAL = Goal(0.1, 0.9, "table I")


def of(own: list[float], exact: list[float]) -> Trainings:
    return Trainings("ring with the codec", own, exact, GOAL)


def test_an_exact_training_must_reach_four_fifths_of_its_gain() -> None:
    assert GOAL.least == pytest.approx(0.74)
    assert of([0.75] * 3, [0.75] * 3).problem == ""
    problem = of([0.73] * 3, [0.73] * 3).problem
    assert "0.730 ± 0.000" in problem
    assert "below 0.740" in problem
    assert "table I" in problem
    assert replace(of([0.73] * 3, [0.73] * 3), goal=replace(GOAL, share=0.7)).problem == ""


def test_another_method_ends_within_two_points_on_either_side() -> None:
    for own, learned in ((0.861, True), (0.899, True), (0.859, False), (0.901, False)):
        assert (of([own] * 3, [0.88] * 3).problem == "") is learned


def test_means_count_and_intervals_are_printed() -> None:
    own = [0.86, 0.88, 0.90]
    text = of(own, [0.88] * 3).in_words()
    half = 4.30 * stdev(own) / math.sqrt(3)
    assert text == f"ring with the codec {fmean(own):.3f} ± {half:.3f} (exact 0.880 ± 0.000)"
    assert of(own, [0.88] * 3).problem == ""


@pytest.mark.parametrize(
    ("own", "exact"), [([], [0.9]), ([0.9], []), ([math.nan], [0.9]), ([0.9], [math.inf])]
)
def test_missing_accuracies_did_not_learn(own: list[float], exact: list[float]) -> None:
    assert of(own, exact).problem == "ring with the codec has training runs without an accuracy"


def test_two_seeds_are_short() -> None:
    assert of([0.9] * 2, [0.9] * 3).is_short
    assert of([0.9] * 3, [0.9] * 2).is_short
    assert not of([0.9] * 3, [0.9] * 3).is_short
    assert "(one seed)" in of([0.9], [0.9]).in_words()


def test_first_steps_are_a_stage_and_no_verdict() -> None:
    found = first_steps("AlexNet", 320_000, [6.9, 6.8, 6.7])
    assert found.problem == ""
    assert found.is_short
    assert found.in_words() == "AlexNet, the first 3 of 320,000 steps, losses 6.90 to 6.70"
    for diverged in (math.inf, math.nan, None):  # None is what a record makes of the others
        assert "losses 6.90 to inf" in first_steps("AlexNet", 320_000, [6.9, diverged]).problem
    with_accuracies = Trainings("ring", [0.1] * 3, [0.1] * 3, GOAL, stage="a stage")
    assert "below 0.740" in with_accuracies.problem, "a stage excuses no accuracy that is there"
