from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from gradwire.doctor.compare import compare
from gradwire.doctor.finding import Card, Finding
from gradwire.errors import JobError
from gradwire.plan import Plan

MakeCards = Callable[..., list[Card]]
PLAN, OTHER_PLAN = Plan().to_json(), Plan(algorithm="star").to_json()


def of(cards: list[Card]) -> dict[str, Finding]:
    return {finding.check: finding for finding in compare(cards)}


def test_ranks_that_are_alike_are_well(make_cards: MakeCards) -> None:
    found = of(make_cards(3))
    assert {finding.result for finding in found.values()} == {"ok"}
    assert found["same gradwire"].detail == "1.2.3 on all 3 ranks"
    assert "same plan" not in found


@pytest.mark.parametrize(
    ("field", "value", "check", "result", "words"),
    [
        ("gradwire", "1.2.4", "same gradwire", "FAIL", "1.2.3 on ranks 0, 2-3; 1.2.4 on rank 1: install"),
        ("wire_version", 2, "same frames", "FAIL", "version 2 on rank 1"),
        ("torch", "2.6.0", "same torch", "warn", "2.7.0+cpu on ranks 0, 2-3; 2.6.0 on rank 1: "),
        ("torch", "2.7.1+cu126", "same torch", "ok", "2.7.1+cu126 on rank 1"),
        ("torch", "git", "same torch", "warn", "git on rank 1"),
        ("python", "3.11.9", "same Python", "warn", "3.11.9 on rank 1"),
        ("target", "scalar", "same kernels", "ok", "avx2 on ranks 0, 2-3; scalar on rank 1"),
        ("kernels_digest", "f00", "same kernels", "FAIL", "payloads f00 on rank 1: "),
    ],
)
def test_who_differs_is_named(
    make_cards: MakeCards, field: str, value: Any, check: str, result: str, words: str
) -> None:
    found = of(make_cards(4, {1: {field: value}}))
    assert {each.check: each.result for each in found.values() if each.check != check} == dict.fromkeys(
        set(found) - {check}, "ok"
    )
    assert found[check].result == result
    assert words in found[check].detail


@pytest.mark.parametrize(
    ("others", "result"),
    [
        ({}, "ok"),
        ({1: {"loopback": True}}, "ok"),
        ({1: {"machine_id": "b"}}, "ok"),
        ({0: {"loopback": True}, 1: {"machine_id": "b"}}, "FAIL"),
    ],
)
def test_a_loopback_address_is_for_one_machine(
    make_cards: MakeCards, others: Mapping[int, Mapping[str, Any]], result: str
) -> None:
    finding = of(make_cards(2, others))["reachable"]
    assert finding.result == result
    if result == "FAIL":
        assert "rank 0: " in finding.detail
        assert "set GLOO_SOCKET_IFNAME on these ranks" in finding.detail


@pytest.mark.parametrize(
    ("plans", "result", "words"),
    [
        ((PLAN, PLAN, PLAN), "ok", "on all 3 ranks"),
        ((PLAN, OTHER_PLAN, PLAN), "FAIL", "on rank 1: use a copy of the same"),
        ((PLAN, PLAN, ""), "FAIL", "no plan on rank 2"),
    ],
)
def test_plans_must_be_equal(make_cards: MakeCards, plans: tuple[str, ...], result: str, words: str) -> None:
    finding = of(make_cards(3, {rank: {"plan": plan} for rank, plan in enumerate(plans)}))["same plan"]
    assert finding.result == result
    assert words in finding.detail


def test_a_card_survives_json(make_cards: MakeCards) -> None:
    (card,) = make_cards(1, {0: {"plan": PLAN, "findings": (Finding("a", "warn", "b"),)}})
    assert Card.from_dict(json.loads(json.dumps(asdict(card)))) == card


@pytest.mark.parametrize("change", [{"unheard of": 1}, {"findings": [{"check": "a"}]}])
def test_the_card_of_another_gradwire_is_refused(make_cards: MakeCards, change: dict[str, Any]) -> None:
    (card,) = make_cards(1)
    with pytest.raises(JobError, match="install the same gradwire"):
        Card.from_dict({**asdict(card), **change})
