"""A rank's card through JSON, as the others read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gradwire.codecs import parse
from gradwire.doctor.finding import Card, Finding
from gradwire.errors import JobError
from gradwire.plan import Plan

Cards = Callable[..., list[Card]]


def test_a_card_through_json_is_the_same(make_cards: Cards) -> None:
    findings = (Finding("memory", "warn", "little"), Finding("plan", "FAIL", "none"))
    (card,) = make_cards(1, {0: {"addresses": ("10.0.0.1", "::1"), "findings": findings}})
    assert Card.from_dict(json.loads(json.dumps(asdict(card)))) == card


@pytest.mark.parametrize("change", ["lacking", "more", "no findings", "other findings"])
def test_the_card_of_another_gradwire_is_refused(change: str, make_cards: Cards) -> None:
    values = asdict(make_cards(1)[0])
    if change == "lacking":
        del values["target"]
    elif change == "more":
        values["colour"] = "blue"
    else:
        values["findings"] = None if change == "no findings" else [{"name": "memory"}]
    with pytest.raises(
        JobError, match=r"^expected .* a rank's description, got .*; install the same gradwire on all"
    ):
        Card.from_dict(values)


def test_equal_plans_have_equal_digests_however_they_are_written(make_cards: Cards, tmp_path: Path) -> None:
    plan = Plan(parse("quantize:8"), "star")
    plan.save(tmp_path / "plan.json")
    other = json.dumps(json.loads((tmp_path / "plan.json").read_text()), indent=7)
    (tmp_path / "other.json").write_text(other)
    (card,) = make_cards(1)
    digests = [
        replace(card, plan=each.to_json() if each else "").plan_digest
        for each in (plan, Plan.of(tmp_path / "other.json"), Plan(parse("quantize:4"), "star"), None)
    ]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 12
    assert digests[3] == ""
