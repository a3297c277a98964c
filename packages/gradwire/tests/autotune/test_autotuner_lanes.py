"""A run that chooses a plan with lanes, with and without connections for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gradwire import Auto, Link
from gradwire.autotune import survey
from gradwire.autotune.costs import Work
from gradwire.autotune.decision import STAYS, Decision
from gradwire.plan import Plan
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import WARM_UP, WINDOW, Told, tell_line

LANES = 4


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Let each choice be the present plan in four lanes, if it may be."""

    def decided(*given: Any) -> Work[tuple[Decision, ...]]:
        yield None
        present: Plan = given[4]
        plan = replace(present, lanes=min(LANES, max(given[6])))
        return (Decision(plan, 0.2, 0.3, 0.1, "a choice"),)

    monkeypatch.setattr(survey, "decide", decided)
    monkeypatch.setattr(survey, "lanes_in", lambda _environment, most: tuple(range(1, most + 1)))
    return tell_line(monkeypatch)


def running(reason: str, has_group: bool = True) -> Callable[[Link], Run]:
    def run(link: Link) -> Run:
        one = Run(link, Auto(), object() if has_group else None)
        one.no_lanes = reason
        for number in range(1, WARM_UP + WINDOW):
            one.step(number)
        return one

    return run


def test_lanes_that_connect_are_used() -> None:
    for one in run_ranks(2, running("")):
        assert [plan.lanes for plan in (one.plans[0], one.plans[-1])] == [1, LANES]


def test_without_connections_the_plan_in_use_stays_and_no_lanes_are_chosen_again() -> None:
    for one in run_ranks(2, running("rank 1 is gone")):
        assert {plan.lanes for plan in one.plans} == {1}
        assert one.plans[-1] == one.plans[0]
        ((_, decision),) = one.tuner.decisions
        assert decision.plan == one.plans[0]
        assert f"{STAYS}: rank 1 is gone" in decision.reason
        assert one.tuner._survey.most_lanes == 1


def test_a_link_without_a_group_gets_one_lane() -> None:
    for one in run_ranks(2, running("", has_group=False)):
        assert one.plans[-1].lanes == 1
        assert STAYS not in one.tuner.decisions[-1][1].reason
