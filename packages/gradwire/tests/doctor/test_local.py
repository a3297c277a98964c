"""One machine's card: what was found on it, and what follows from what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire import plugins
from gradwire.codecs import parse
from gradwire.doctor import local, software
from gradwire.doctor.finding import Card, Finding
from gradwire.doctor.software import SelfTest
from gradwire.machine import machine_id
from gradwire.plan import Plan
from gradwire.version import version
from gradwire.wire import VERSION


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try no codec, open nothing, and let no other package have checks."""
    monkeypatch.setattr(software, "self_test", lambda _: SelfTest("scalar", "0123", 3, ()))
    monkeypatch.setattr(software, "check_gloo", lambda _: Finding("Gloo", "ok", "not tried"))
    monkeypatch.setattr(plugins, "names", lambda _group: ())


def examine(plan: Path | None = None, environment: dict[str, str] | None = None, **others: Any) -> Card:
    return local.examine_machine(plan, 1, others.get("neighbours", 1), environment or {})


def results(card: Card) -> dict[str, str]:
    return {finding.check: finding.result for finding in card.findings}


def test_a_card_says_what_is_here() -> None:
    card = examine()
    assert (card.gradwire, card.wire_version, card.machine_id) == (version(), VERSION, machine_id())
    assert (card.target, card.kernels_digest, card.plan) == ("scalar", "0123", "")
    assert [each.check for each in card.findings] == [
        *("Python", "torch", "gradwire", "kernels", "cores", "NUMA", "memory", "limits"),
        *("interface", "TCP", "TLS", "Gloo"),
    ]


def test_a_plan_is_read_and_told(tmp_path: Path) -> None:
    plan = Plan(parse("quantize:8"), "star", pipeline=2)
    plan.save(tmp_path / "plan.json")
    card = examine(tmp_path / "plan.json")
    assert Plan.from_json(card.plan) == plan
    assert card.findings[-1] == Finding("plan", "ok", "quantize:8 over star, pipeline 2")


def test_a_sharded_plan_is_told(tmp_path: Path) -> None:
    Plan(parse("quantize:8"), exchange="sharded").save(tmp_path / "plan.json")
    card = examine(tmp_path / "plan.json")
    assert Plan.from_json(card.plan).is_sharded
    assert card.findings[-1] == Finding("plan", "ok", "quantize:8 over ring, sharded")


def test_a_plan_that_cannot_be_read_fails_and_is_no_plan(tmp_path: Path) -> None:
    card = examine(tmp_path / "none.json")
    assert card.plan == ""
    assert results(card)["plan"] == "FAIL"
    assert card.findings[-1].detail.endswith(", or use 'gradwire plan --save FILE'")


def test_gloo_is_not_asked_where_the_interface_fails() -> None:
    found = results(examine(environment={"GLOO_SOCKET_IFNAME": "nowhere0"}))
    assert found["interface"] == "FAIL"
    assert "Gloo" not in found


def test_threads_that_nobody_can_have_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", "many")
    card = examine()
    (cores,) = (each for each in card.findings if each.check == "cores")
    assert cores.result == "FAIL"
    assert cores.detail.startswith("GRADWIRE_THREADS: expected a whole number from 1 to 9999, got 'many'; ")


def test_checks_of_other_packages_come_before_the_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fan = Finding("fans", "FAIL", "they stand still")
    checks: dict[str, Callable[[], object]] = {"a": lambda: iter([fan]), "b": lambda: [][1]}
    monkeypatch.setattr(plugins, "names", lambda _group: tuple(checks))
    monkeypatch.setattr(plugins, "entry", lambda _group, name: checks[name])
    monkeypatch.setattr(plugins, "origin", lambda _group, _name: "example==1.5")
    fans, broken, plan = examine(tmp_path / "none.json").findings[-3:]
    assert fans == fan
    assert (broken.check, broken.result, plan.check) == ("b", "warn", "plan")
    assert broken.detail.startswith("the check of example==1.5 failed (IndexError: list index out of range)")
