"""Autotune decides in ten runs as the version before the split did; commit 5d7ef2d3 wrote ``decisions.json``.

The expected times and bytes (``step_s``, ``nbytes``) are from the version that first measured payloads on the
sums of all ranks' gradients, which changes them by less than one percent; the plans are as before the split.

A run is passed its network, its step times and its gradients, so that it measures nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import pytest

from gradwire import Auto, Link, Plan
from gradwire.autotune import settings
from support import golden
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import FAST, SLOW, tell_line

DECIDED = golden.load("decisions")


@dataclass(frozen=True)
class Scenario:
    """What one run is passed: its settings, and from which step on what its network and steps are like."""

    links: dict[int, tuple[float, ...]]
    exposed_s: dict[int, float]
    world: int = 2
    steps: int = 60
    settings: dict[str, Any] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    """The factor of rank 1's gradients at a step."""
    has_weak_bucket: bool = False


ON_SLOW: dict[str, Any] = {"links": {1: SLOW}, "exposed_s": {1: 0.1}}
SCENARIOS = {
    "slow-2": Scenario(**ON_SLOW),
    "slow-3": Scenario(**ON_SLOW, world=3),
    "fast-2": Scenario({1: FAST}, {1: 0.001}),
    "becomes-fast": Scenario({1: SLOW, 90: FAST}, {1: 0.1, 90: 0.01}, steps=260),
    "becomes-slow": Scenario({1: FAST, 90: SLOW}, {1: 0.01, 90: 0.2}, steps=260),
    "strict": Scenario(**ON_SLOW, settings={"max_lost_norm": 0.02}),
    "loose": Scenario(**ON_SLOW, settings={"max_lost_norm": 0.9}),
    "two-codecs": Scenario(**ON_SLOW, settings={"codecs": ["bf16", "quantize:4"]}),
    "not-finite": Scenario(**ON_SLOW, scales={5: inf, 6: nan}),
    "weak-parameters": Scenario(**ON_SLOW, steps=120, has_weak_bucket=True),
}


@pytest.mark.skipif(not golden.draws_alike(), reason="this machine draws other gradients")
@pytest.mark.parametrize("name", DECIDED)
def test_autotune_decides_as_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, told = SCENARIOS[name], tell_line(monkeypatch)
    monkeypatch.setattr(settings, "DEFAULT_CODEC", "fp8")  # the codec with which those runs began

    def train(link: Link) -> dict[str, Any]:
        run = Run(link, Auto(**scenario.settings))
        run.weak = scenario.has_weak_bucket
        for number in range(1, scenario.steps + 1):
            if number in scenario.links and link.rank == 0:
                told["line"] = scenario.links[number]
            run.exposed_s = scenario.exposed_s.get(number, run.exposed_s)
            run.step(number, scenario.scales.get(number, 1.0) if link.rank == 1 else 1.0)
        return {
            "plans": [[number, json.loads(plan.to_json())] for number, plan in changes(run.plans)],
            "decisions": [[step, json.loads(each.to_json())] for step, each in run.tuner.decisions],
            "state": json.loads(run.state.to_json()),
        }

    first, *others = run_ranks(scenario.world, train, timeout_s=120.0)
    assert all(other["plans"] == first["plans"] for other in others)
    assert golden.difference(without_reasons(DECIDED[name]), without_reasons(first)) is None


def without_reasons(value: Any) -> Any:
    """Return plain data without the sentences that give reasons, whose wording may change."""
    if isinstance(value, dict):
        return {key: without_reasons(each) for key, each in value.items() if key != "reason"}
    return [*map(without_reasons, value)] if isinstance(value, list) else value


def changes(plans: list[Plan]) -> list[tuple[int, Plan]]:
    """Return the steps at which the plan changes, and the new plans."""
    before = [None, *plans]
    return [
        (number, plan)
        for number, (old, plan) in enumerate(zip(before, plans, strict=False), 1)
        if plan != old
    ]
