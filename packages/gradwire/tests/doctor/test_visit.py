"""Whole visits, with ranks that are threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.codecs import parse
from gradwire.doctor.finding import Card, Diagnosis, Finding
from gradwire.doctor.ranks import Words
from gradwire.errors import LinkError
from gradwire.links import loopback
from gradwire.plan import Plan
from support.faulty_link import Fault, FaultyLink

MakeCards = Callable[..., list[Card]]
Consult = Callable[..., tuple[Diagnosis, list[Any]]]
PLAN = Plan(parse("errbound:2^-10")).to_json()


def results(report: Diagnosis) -> dict[str, str]:
    return {finding.check: finding.result for finding in report.findings}


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_that_are_well_leave_with_0(make_cards: MakeCards, consult: Consult, world: int) -> None:
    cards = make_cards(world, {rank: {"plan": PLAN} for rank in range(world)})
    report, codes = consult(cards, lines=True)
    assert codes == [0] * (world - 1)
    others = list(range(1, world))
    assert (list(report.offsets), list(report.looks)) == (others, others)
    assert set(results(report).values()) <= {"ok", "warn"}
    assert results(report)["trial"] == "ok"
    assert [card.plan for card in report.cards] == [PLAN] * world


def test_without_a_plan_nothing_is_tried(make_cards: MakeCards, consult: Consult) -> None:
    report, codes = consult(make_cards(2))
    assert codes == [0]
    assert not {"trial", "same plan", "line rate"} & set(results(report))


@pytest.mark.parametrize("change", [{"plan": Plan().to_json()}, {"plan": ""}, {"gradwire": "9"}])
def test_one_rank_that_differs_fails_all(
    make_cards: MakeCards, consult: Consult, change: dict[str, Any]
) -> None:
    cards = make_cards(3, {0: {"plan": PLAN}, 1: {"plan": PLAN} | change, 2: {"plan": PLAN}})
    report, codes = consult(cards)
    assert codes == [1, 1]
    (check,) = (finding.check for finding in report.findings if finding.result == "FAIL")
    assert check == ("same plan" if "plan" in change else "same gradwire")


def test_what_a_rank_found_at_home_fails_all(make_cards: MakeCards, consult: Consult) -> None:
    report, codes = consult(make_cards(3, {2: {"findings": (Finding("Python", "FAIL", "too old"),)}}))
    assert codes == [1, 1]
    assert Finding("Python", "FAIL", "rank 2: too old") in report.findings


def test_ranks_that_cannot_reach_each_other_are_not_connected(
    make_cards: MakeCards, consult: Consult
) -> None:
    report, codes = consult(make_cards(2, {1: {"machine_id": "b", "loopback": True}}))
    assert codes == [1]
    assert results(report)["reachable"] == "FAIL"
    assert "connection" not in results(report)


def test_a_rank_that_does_not_come_is_named_within_the_timeout(
    make_cards: MakeCards, consult: Consult
) -> None:
    started = time.monotonic()
    report, codes = consult(make_cards(4), absent=(1, 3), timeout_s=0.5)
    assert time.monotonic() - started < 20
    assert codes[1] == 1
    (failure,) = (finding for finding in report.findings if finding.result == "FAIL")
    assert failure.detail.startswith("ranks 1, 3 of 4 did not respond within 0.5 s")


def test_a_line_that_breaks_is_a_finding_and_all_ranks_leave(make_cards: MakeCards, consult: Consult) -> None:
    ends = loopback(3, 1.0)
    links = [ends[0], ends[1], FaultyLink(ends[2], [Fault("drop", 2, 1)])]
    report, codes = consult(make_cards(3), links=links)
    assert codes == [1, 1]
    failure = report.findings[-1]
    assert (failure.check, failure.result) == ("clocks", "FAIL")
    assert "rank 2" in failure.detail
    assert "GLOO_SOCKET_IFNAME" in failure.detail


def test_a_word_that_nobody_says_is_an_error_in_time() -> None:
    with pytest.raises(LinkError, match=r"waiting for 'x': no value within 0\.2 s"):
        Words(HashStore()).hear("x", 0.2)
