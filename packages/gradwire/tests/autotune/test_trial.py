from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gradwire import Plan
from gradwire.autotune.decision import Decision
from gradwire.autotune.settings import DEFAULT
from gradwire.autotune.states import Trial
from gradwire.autotune.survey import CHOICES
from gradwire.errors import ExchangeError
from gradwire.fields import to_values
from support.told_line import TURN

EXACT = Decision(Plan(), 1.0, 1.0, 0.1, "no compression", nbytes=4e6)
RING = Decision(Plan.of("quantize:8"), 0.5, 1.0, 0.1, "quantize:8 over ring", nbytes=1e6)
STAR = replace(RING, plan=Plan.of("quantize:4", algorithm="star"), reason="star", extra=0.1, nbytes=5e5)


def after(
    *seconds: float, of: tuple[Decision, ...] = (EXACT, RING, STAR), present: Plan | None = None
) -> Trial:
    return tried(Trial(of, present), seconds)


def tried(trial: Trial, seconds: Sequence[float], disagreements: Sequence[float] = (0.0,) * 4) -> Trial:
    """Give each decision its turns, all of which take as long."""
    turns_of(trial, seconds, disagreements)
    return trial


def turns_of(
    trial: Trial, seconds: Sequence[float], disagreements: Sequence[float] = (0.0,) * 4
) -> list[int]:
    """Do what ``tried`` does, and return whose turns they were."""
    turns = []
    while trial.present is not None:
        turns.append(whose_turn(trial))
        trial.note(seconds[turns[-1]], disagreements[turns[-1]])
    return turns


def whose_turn(trial: Trial) -> int:
    assert trial.present is not None
    return [each.plan for each in trial.decisions].index(trial.present.plan)


def test_each_decision_has_its_turn() -> None:
    shown = []
    first = Trial((EXACT, RING, STAR)).present
    trial = Trial((EXACT, RING, STAR))
    assert first is not None
    assert first.reason == "identity over ring: expected step time 1s; on trial, 1 of 3"
    while (present := trial.present) is not None:
        shown.append((present.plan, present.reason.split("; ")[-1], trial.steps))
        trial.note(1.0, 0.0)
    assert shown == [
        (EXACT.plan, "on trial, 1 of 3", 2 * TURN),
        (RING.plan, "on trial, 2 of 3", TURN),
        (STAR.plan, "on trial, 3 of 3", TURN),
        (STAR.plan, "on trial, 3 of 3, again", TURN),
        (RING.plan, "on trial, 2 of 3, again", TURN),
        (EXACT.plan, "on trial, 1 of 3, again", TURN),
    ]


@pytest.mark.parametrize("leanest", range(4))
@pytest.mark.parametrize("faster", [0.005, -0.005])
def test_a_machine_that_becomes_faster_or_slower_meanwhile_favours_none(faster: float, leanest: int) -> None:
    """The leanest of equal plans stays, whichever turns it has, if that is up to 5 % in a turn."""
    algorithms = ("tree", "star", "butterfly")
    decisions = [replace(RING, plan=Plan.of("quantize:8", algorithm=each)) for each in algorithms]
    decisions.insert(leanest, replace(STAR, extra=0.0))
    trial = Trial(decisions)
    for number in range(8):
        trial.note(0.1 - faster * number, 0.0)
    assert trial.present is None
    best = trial.best()
    assert best.plan == STAR.plan
    assert best.step_s == pytest.approx(0.1 - 3.5 * faster)
    took = best.reason.partition("steps each: ")[2].partition(", of which")[0]
    assert len({each.rpartition(" ")[2] for each in took.split(", ")}) == 1, "all took as long"


@pytest.mark.parametrize("untimed", range(6))
def test_a_turn_that_was_not_timed_leaves_its_plan_the_other_one(untimed: int) -> None:
    trial, took_s = Trial((EXACT, RING, STAR)), (0.0228, 0.02, 0.0205)
    for number in range(6):
        trial.note(math.inf if number == untimed else took_s[whose_turn(trial)], 0.0)
    assert trial.present is None
    assert (trial.best().plan, trial.best().step_s) == (RING.plan, 0.02)


def test_plans_that_are_behind_have_no_second_turn() -> None:
    lean, fat = replace(STAR, extra=0.0), EXACT
    for seconds, turns in (
        ((0.0248, 0.02, 0.0248), [0, 1, 2, 2, 1, 0]),
        ((0.0252, 0.02, 0.0248), [0, 1, 2, 2, 1]),
        ((0.0248, 0.02, 0.0252), [0, 1, 2, 1, 0]),
        ((0.0252, 0.021, 0.02), [0, 1, 2, 2, 1]),
        ((0.04, 0.02, 0.05), [0, 1, 2]),
        ((0.02, 0.04, 0.05), [0, 1, 2]),
    ):
        assert turns_of(Trial((fat, RING, lean)), seconds) == turns, seconds


@pytest.mark.parametrize("slower", [1.25, 1.4])
def test_a_plan_that_was_behind_does_not_gain_from_a_machine_that_becomes_slower(slower: float) -> None:
    lean = replace(STAR, extra=0.0)
    for decisions, seconds, stays, exact_s in (
        ((EXACT, RING, lean), (0.0252, 0.02, 0.0205), lean, 0.0252),
        ((RING, EXACT, lean), (0.02, 0.0205, 0.0252), EXACT, 0.0205 * (1 + slower) / 2),
    ):
        trial = Trial(decisions)
        for number in range(5):
            trial.note(seconds[whose_turn(trial)] * (slower if number > 2 else 1.0), 0.08)
        assert trial.present is None
        best = trial.best()
        assert best.plan == stays.plan
        assert best.uncompressed_s == pytest.approx(exact_s)


@pytest.mark.parametrize("disagreement", [0.0, 0.08])
def test_a_plan_in_use_that_is_behind_does_not_stay(disagreement: float) -> None:
    near = replace(RING, plan=Plan.of("quantize:8", algorithm="star"))
    trial = tried(Trial((RING, near, STAR), RING.plan), (0.026, 0.02, 0.025), [disagreement] * 3)
    assert trial.best().plan == near.plan


def test_the_reason_tells_who_was_behind() -> None:
    reason = after(0.031, 0.02, 0.021).best().reason
    assert "tried for 10 steps each, slow plans for 5: identity over ring 31ms, " in reason
    assert "slow plans" not in after(0.0228, 0.02, 0.021).best().reason


def test_extra_steps_can_leave_a_plan_behind() -> None:
    rough = replace(RING, extra=0.3)
    assert turns_of(Trial((rough, EXACT, STAR)), (0.02, 0.02, 0.02)) == [0, 1, 2, 2, 1]


def test_if_all_others_are_behind_the_trial_ends_with_the_fastest() -> None:
    best = after(0.04, 0.05, 0.02).best()
    assert (best.plan, best.step_s, best.uncompressed_s) == (STAR.plan, 0.02, 0.04)
    assert "tried for 5 steps each: identity over ring 40ms, " in best.reason


def test_one_decision_is_not_tried() -> None:
    alone = Trial((RING,))
    assert alone.present is None
    assert alone.best() == RING


def test_the_fastest_by_what_steps_took_stays_whatever_was_expected() -> None:
    best = after(0.02, 0.03, 0.04, of=(RING, EXACT, STAR)).best()
    assert (best.plan, best.step_s) == (RING.plan, 0.02)
    best = after(0.05, 0.04, 0.02).best()
    assert (best.plan, best.step_s) == (STAR.plan, 0.02)
    assert best.reason.startswith(
        "star; tried for 5 steps each: identity over ring 50ms, quantize:8 over ring"
    )
    assert TURN == 5


def test_plans_that_differ_in_their_segments_alone_are_told_apart() -> None:
    small = replace(RING, plan=replace(RING.plan, segment_nbytes=1 << 18))
    best = after(0.05, 0.04, 0.02, of=(RING, STAR, small)).best()
    assert best.plan == small.plan
    assert best.reason.endswith(
        "quantize:8 over ring in segments of 4MiB 50ms, quantize:4 over star 40ms, "
        "quantize:8 over ring in segments of 256KiB 20ms; quantize:8 over ring in segments of 256KiB stays"
    )


def test_extra_steps_count() -> None:
    assert after(1.0, 0.02, 0.0195).best().plan == RING.plan, "the star needs a tenth more steps"


def test_of_those_that_are_as_fast_the_one_with_the_fewest_bytes_stays() -> None:
    equal = replace(STAR, extra=0.0)
    assert after(1.0, 0.02, 0.0208, of=(EXACT, RING, equal)).best().plan == STAR.plan
    assert after(1.0, 0.02, 0.0212, of=(EXACT, RING, equal)).best().plan == RING.plan


def test_plans_are_as_fast_if_they_differ_by_less_than_chance_explains() -> None:
    equal = replace(STAR, extra=0.0)
    for took_s, disagreement, stays in (
        (0.0212, 0.04, STAR),
        (0.0212, 0.02, RING),
        (0.0218, 0.04, RING),
        (0.0228, 0.5, STAR),
        (0.0232, 0.5, RING),
    ):
        for first, second in ((RING, equal), (equal, RING)):
            seconds = [0.02 if each is RING else took_s for each in (first, second)]
            trial = tried(Trial((first, second)), seconds, [disagreement] * 2)
            best = trial.best()
            assert best.plan == stays.plan, (took_s, disagreement)
            said = f"plans within {min(2 * disagreement, 0.15):.0%} are equally fast"
            assert (said in best.reason) == ("are equally" in best.reason) == (disagreement > 0.025)


def test_one_plan_whose_steps_scatter_does_not_make_others_equal() -> None:
    trial = tried(Trial((EXACT, RING, replace(STAR, extra=0.0))), (0.9, 0.02, 0.0212), (0.5, 0.01, 0.01))
    assert trial.best().plan == RING.plan


def test_of_equal_plans_one_that_saves_more_time_than_bytes_stays() -> None:
    leaner = replace(RING, plan=STAR.plan, nbytes=0.97e6)
    assert after(0.02, 0.0204, of=(RING, leaner)).best().plan == leaner.plan
    assert after(0.02, 0.0208, of=(RING, leaner)).best().plan == RING.plan
    assert after(0.0204, 0.02, of=(RING, replace(leaner, nbytes=RING.nbytes))).best().plan == leaner.plan


def test_a_plan_in_use_that_is_slower_by_chance_stays() -> None:
    near = replace(RING, plan=Plan.of("quantize:8", algorithm="star"), nbytes=0.99e6)
    for disagreement, stays in ((0.1, RING), (0.0, near)):
        trial = tried(Trial((RING, near), RING.plan), (0.0216, 0.02), [disagreement] * 2)
        assert trial.best().plan == stays.plan


def test_compression_has_to_be_worth_its_noise() -> None:
    assert after(0.02, 0.0198, 0.0197).best().plan == EXACT.plan
    assert after(0.02, 0.019, 0.0197).best().plan == RING.plan
    assert after(0.02, 0.0199, of=(RING, STAR)).best().plan == RING.plan, "nothing exact was tried"


def test_the_decisions_of_a_trial_travel_as_a_record() -> None:
    assert CHOICES.read(json.dumps(to_values((RING, STAR))).encode()) == (RING, STAR)
    wrong: list[Any] = [[], {}, "", 3, None, [3], [{"plan": 3}], [to_values(RING) | {"step_s": -1.0}]]
    for values in wrong:
        with pytest.raises(ExchangeError, match=r"the plans of a choice from rank 0.*; use the same version"):
            CHOICES.read(json.dumps(values).encode())


def test_the_plan_in_use_stays_unless_another_is_clearly_better() -> None:
    near = replace(RING, plan=Plan.of("quantize:8", algorithm="star"), nbytes=0.99e6)
    for present, took, stays in (
        (RING.plan, (0.02, 0.0201), True),
        (None, (0.02, 0.0201), False),
        (near.plan, (0.02, 0.0201), False),
        (RING.plan, (0.0204, 0.02), True),
        (RING.plan, (0.0212, 0.02), False),
    ):
        trial = after(*took, of=(RING, near), present=present)
        assert (trial.best().plan == RING.plan) == stays


def test_what_was_measured_without_compression_is_what_compression_is_compared_with() -> None:
    best = after(0.05, 0.04, 0.02).best()
    assert (best.step_s, best.uncompressed_s) == (0.02, 0.05)
    assert after(0.02, 0.0199, of=(RING, STAR)).best().uncompressed_s == 1.0, "as expected"


def test_without_times_the_most_promising_stays() -> None:
    assert after(math.inf, math.inf, math.inf, of=(RING, EXACT, STAR)).best() == RING
    assert after(math.inf, 0.02, math.inf, of=(RING, EXACT, STAR)).best().plan == EXACT.plan
    assert Trial(()).present is None


def costing(*steps_s: float) -> tuple[Decision, ...]:
    """Return decisions with these expected step times."""
    plans = [replace(RING.plan, segment_nbytes=(i + 1) << 18) for i in range(len(steps_s))]
    return tuple(replace(RING, step_s=each, plan=plan) for each, plan in zip(steps_s, plans, strict=True))


def test_decisions_whose_trial_is_expected_to_cost_too_much_have_no_turn() -> None:
    """Ten steps may take twice as long as the best plan's, in all trials together."""
    assert TURN == 5
    affordable = Trial(costing(1.0, 1.3, 1.5, 1.3, 1.1))
    assert turns_of(affordable, (1.0,) * 5, (0.0,) * 5)[:4] == [0, 1, 2, 4]
    assert Trial(costing(1.0, 2.5)).present is None, "nothing is tried"


def test_trials_end_once_they_have_cost_too_much() -> None:
    decisions, patient = costing(1.0, 1.1, 1.1), replace(DEFAULT, behind_ratio=9.0)
    assert turns_of(Trial(decisions), (1.0, 3.5, 1.0)) == [0, 1], "12.5 steps' time"
    assert after(1.0, 3.5, 1.0, of=decisions).best().plan == decisions[0].plan
    turns = turns_of(Trial(decisions, config=patient), (1.0, 2.2, 1.1))
    assert turns == [0, 1, 2, 2, 0], "the second has cost six steps' time, and may cost four more"
