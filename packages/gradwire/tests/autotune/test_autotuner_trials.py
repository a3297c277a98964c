from __future__ import annotations

import logging
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from gradwire import Auto, Link, Plan
from gradwire.autotune import survey
from gradwire.autotune.costs import Work
from gradwire.autotune.decide import decide
from gradwire.autotune.decision import Decision, State
from gradwire.errors import SpecError
from support.piloted import Run, train
from support.ranks import run_ranks
from support.told_line import TURN, TURNS, WARM_UP, WINDOW, Told, configure, tell_line


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> Told:
    told = tell_line(monkeypatch)
    configure(monkeypatch, most_trials=3)
    return told


def test_plans_that_may_be_as_good_are_tried_and_the_fastest_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, last = Auto(path=tmp_path / "auto.json"), WARM_UP + 1 + TURNS[-1]
    expected = run_ranks(4, train, Auto(), WARM_UP + 1)[0].plans[-1]

    def run(link: Link) -> Run:
        one = Run(link, settings)
        one.exposed_by = {expected.algorithm: 0.3}  # those that nobody expects to be the fastest take 0.1 s
        for number in range(1, last + 4 * WINDOW):
            one.step(number)
        return one

    with caplog.at_level(logging.INFO, "gradwire"):
        runs = run_ranks(4, run)
    assert all(run.plans == runs[0].plans for run in runs)
    decisions = runs[0].tuner.decisions
    assert [step for step, _ in decisions] == [WARM_UP + 1 + each for each in TURNS]
    tried = [decision.plan.algorithm for _, decision in decisions]
    assert tried[0] == expected.algorithm
    assert len({(each.plan.algorithm, bool(each.plan.codecs)) for _, each in decisions[:3]}) == 3
    assert tried[-1] != expected.algorithm
    assert decisions[-1][1].step_s == pytest.approx(0.2), "what was measured"
    assert runs[0].plans[-1] == decisions[-1][1].plan
    assert "tried for 10 steps each" in decisions[-1][1].reason
    (line,) = caplog.messages
    assert line.startswith(f"{decisions[-1][1].in_short}: expected step time 200ms, "), (
        "one line, of the choice"
    )
    again = run_ranks(4, train, settings, 2)
    assert again[0].plans == [decisions[-1][1].plan] * 2


def test_no_rank_gives_a_second_turn_to_a_plan_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, behind_ratio=2.5)
    expected = run_ranks(4, train, Auto(), WARM_UP + 1)[0].plans[-1]

    def run(link: Link) -> Run:
        one = Run(link, Auto())
        if link.rank == 2:  # alone; with other plans it takes 0.1 s, like the others with any
            one.exposed_by = {expected.algorithm: 0.5}
        for number in range(1, WARM_UP + 2 + TURNS[-1]):
            one.step(number)
        return one

    runs = run_ranks(4, run)
    assert all(run.plans == runs[0].plans for run in runs)
    plans = [decision.plan for _, decision in runs[0].tuner.decisions]
    assert plans[0].algorithm == expected.algorithm
    assert plans.count(plans[0]) == 1
    assert len(plans) < len(TURNS)
    assert plans[-1].algorithm != expected.algorithm


def test_a_run_that_ends_on_trial_has_saved_what_was_expected_to_be_best(tmp_path: Path) -> None:
    settings = Auto(path=tmp_path / "auto.json")
    first = run_ranks(4, train, settings, WARM_UP + 2 + TURNS[1])[0].tuner.decisions
    assert len(first) == 2
    assert run_ranks(4, train, settings, 2)[0].plans == [first[0][1].plan] * 2


def test_a_run_that_resumes_from_the_midst_of_a_trial_decides_anew() -> None:
    saved_at = WARM_UP + 1 + TURNS[1] + 2
    runs = run_ranks(4, train, Auto(), saved_at)
    state = runs[0].state
    assert len(state.decisions) == 2
    assert State.from_json(state.to_json()) == state

    def again(link: Link) -> Run:
        run = Run(link, Auto())
        run.load(state)
        first = run.tuner.loaded_plan
        assert first is not None
        assert first == state.decisions[-1][1].plan
        run.exchange.follow(first)
        for number in range(1, WARM_UP + 2 + TURNS[-1]):
            run.step(number)
        return run

    resumed = run_ranks(4, again)
    assert all(run.plans == resumed[0].plans for run in resumed)
    assert resumed[0].plans[:WARM_UP] == [state.decisions[-1][1].plan] * WARM_UP
    steps = [step for step, _ in resumed[0].tuner.decisions[2:]]
    assert steps == [saved_at + 1 + WARM_UP + each for each in TURNS]


def test_a_line_that_changes_is_answered_by_another_trial(line: Told) -> None:
    def run(link: Link) -> Run:
        one = Run(link, Auto(max_lost_norm=0.3))
        for number in range(1, 240):
            if number == 120:
                line["line"], one.exposed_s = (1e-4, 1.4e5, 0.0, 1.0), 0.05
            one.step(number)
        return one

    runs = run_ranks(4, run)
    assert all(run.plans == runs[0].plans for run in runs)
    steps = [step for step, _ in runs[0].tuner.decisions]
    before, after = ([each for each in steps if (each < 120) == first] for first in (True, False))
    assert before == [WARM_UP + 1 + each for each in TURNS]
    assert len(after) > 1
    assert {b - a for a, b in pairwise(after)} == {TURN, 2 * TURN}


def test_a_codec_that_is_no_candidate_is_replaced_once_it_breaks_the_contract(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one of the first steps, which stays where nothing can be chosen."""
    configure(monkeypatch, resample_steps=WINDOW)
    monkeypatch.setattr(Auto, "first_plan", Plan.of("quantize:8", residual=False))
    choose, calls = decide, count()

    def decided(*args: Any) -> Work[tuple[Decision, ...]]:
        if next(calls) == 0:
            raise SpecError("not yet")
        return choose(*args)

    monkeypatch.setattr(survey, "decide", decided)

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["bf16"]))
        one.small = True  # so that quantize:8 breaks the contract
        for number in range(1, 3 * WINDOW):
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    assert str(runs[0].plans[WARM_UP].codec) == "quantize:8"
    assert str(runs[0].plans[-1].codec) == "bf16"
