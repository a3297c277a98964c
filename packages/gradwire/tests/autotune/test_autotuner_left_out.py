"""Codecs that a tuner leaves out, and takes back later."""

from __future__ import annotations

import pytest

from gradwire import Auto, Link
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import WARM_UP, WINDOW, Told, tell_line


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> Told:
    return tell_line(monkeypatch)


@pytest.mark.parametrize("apart", [True, False])
def test_features_that_some_ranks_have_leave_no_codec_out_and_faint_ones_do(apart: bool) -> None:
    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["fp8", "ecsq:0.25"]))
        one.lit = slice(link.rank if apart else 0, None, 2)
        for number in range(1, WARM_UP + WINDOW + 3):
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    assert {str(each.codec) for each in runs[0].plans[WARM_UP:]} == {"ecsq:0.25" if apart else "fp8"}
    assert runs[0].tuner.decisions[0][1].left_out == (() if apart else ("ecsq:0.25",))


@pytest.mark.parametrize("suits_from", [2, WARM_UP + 1, 1000])
def test_a_codec_that_was_left_out_is_taken_once_it_suits_the_gradients(suits_from: int) -> None:
    """At first they are so small that the bound takes nearly all of them."""

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["errbound:2^-4", "bf16"]))
        for number in range(1, WARM_UP + 12 * WINDOW):
            one.step(number, 1e-2 if number < suits_from else 1.0)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    decided = [(step, str(decision.plan.codec)) for step, decision in runs[0].tuner.decisions]
    first, look = WARM_UP + 1, WARM_UP + 2 + WINDOW
    assert (
        decided
        == {
            2: [(first, "errbound:2^-4")],
            WARM_UP + 1: [(first, "bf16"), (look, "errbound:2^-4")],
            1000: [(first, "bf16")],
        }[suits_from]
    )


def test_a_codec_that_has_failed_does_not_come_back() -> None:
    """It suits the gradients after the first choice, not any more once it is in use, and then again."""
    fails, ends = WARM_UP + 2 + WINDOW, WARM_UP + 2 * WINDOW + 4

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["errbound:2^-4", "bf16"]))
        for number in range(1, WARM_UP + 40 * WINDOW):
            one.step(number, 1e-2 if number <= WARM_UP or fails <= number <= ends else 1.0)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    decided = [str(decision.plan.codec) for _, decision in runs[0].tuner.decisions]
    assert [decided[0], decided[1], decided[-1]] == ["bf16", "errbound:2^-4", "bf16"]
    assert max(step for step, _ in runs[0].tuner.decisions) <= ends + 1


def test_a_codec_with_a_step_for_sums_comes_back_for_an_algorithm_that_it_suits() -> None:
    """Values of one magnitude are whole numbers of its steps."""

    def run(link: Link) -> Run:
        one = Run(link, Auto(0.15, codecs=["ecsq:0.5,sum=0.35", "fp8"]))
        for number in range(1, WARM_UP + 2 * WINDOW):
            one.even = number > WARM_UP
            one.step(number)
        return one

    (_, before), (_, after) = run_ranks(3, run)[0].tuner.decisions
    assert before.left_out == ("ecsq:0.5,sum=0.35",)
    assert (str(after.plan.codec), after.plan.algorithm) == ("ecsq:0.5,sum=0.35", "pairwise")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sample_that_is_not_finite_says_nothing_of_what_was_left_out(rank: int) -> None:
    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["errbound:2^-4", "bf16"]))
        for number in range(1, WARM_UP + 2 * WINDOW):
            broken = number == WARM_UP + WINDOW and link.rank == rank
            one.step(number, float("inf") if broken else 1e-2)
        return one

    (decided,) = run_ranks(2, run)[0].tuner.decisions
    assert decided[1].left_out == ("errbound:2^-4",)
