from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from gradwire import Auto, Exchange, Link, Plan
from gradwire.auto import network, pilot
from gradwire.auto.pilot import WARM_UP, Pilot
from gradwire.auto.step_times import KEPT
from gradwire.codecs import Identity
from gradwire.planner.inputs import cluster
from gradwire.timing.replay.host import HostCost
from support.ranks import run_ranks

T = TypeVar("T")
COUNTS = (5000, 3000)
SLOW, FAST = (1e-4, 1e5, 0.0, 1.0), (1e-7, 1e13, 0.0, 1.0)


class Run:
    """One rank's run: a loop like that of DDP's hook, with a line of which a test decides."""

    def __init__(self, link: Link, settings: Auto) -> None:
        self.exchange = Exchange(link, settings.first_plan)
        self.now, self.exposed_s = 0.0, 0.1
        shapes = [[each] for each in COUNTS]
        self.pilot = Pilot(settings, link.rank, link.world, shapes, 10.0, lambda: self.now)
        self.plans: list[Plan] = []
        self.generator = torch.Generator().manual_seed(link.rank)

    def ask(self, what: str, work: Callable[[Exchange], T]) -> T:
        assert what
        return work(self.exchange)

    def step(self, number: int, scale: float = 1.0) -> None:
        chosen = self.pilot.begin(number, self.exchange.plan, self.ask)
        if chosen is not None:
            self.exchange.follow(chosen)
        self.plans.append(self.exchange.plan)
        for count in COUNTS:
            values = torch.randn(count, generator=self.generator) * scale
            self.now += 0.05
            self.pilot.handed_over(count)
            if self.pilot.samples is not None:
                self.pilot.samples.expect([(10, count // 20), (count - count // 20 * 10,)])
                self.pilot.samples.add(values)
            self.exchange.all_reduce(values)
        self.now += self.exposed_s
        self.pilot.end()


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, ...]]:
    now: dict[str, tuple[float, ...]] = {"line": SLOW}
    monkeypatch.setattr(network, "own_line", lambda _link: now["line"])
    monkeypatch.setattr(cluster, "measure_host", lambda _cores, _ranks: HostCost(cores=4))
    monkeypatch.delenv("GRADWIRE_AUTO", raising=False)
    return now


def train(link: Link, settings: Auto, steps: int, scales: dict[int, float] | None = None) -> Run:
    run = Run(link, settings)
    for number in range(1, steps + 1):
        run.step(number, (scales or {}).get(number, 1.0))
    return run


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_take_one_plan_in_the_same_step(world: int) -> None:
    runs = run_ranks(world, train, Auto(), WARM_UP + 2)
    assert all(run.plans == runs[0].plans for run in runs)
    plans, ((step, decision),) = runs[0].plans, runs[0].pilot.decisions
    assert step == WARM_UP + 1
    assert plans[:WARM_UP] == [Auto().first_plan] * WARM_UP
    assert plans[WARM_UP:] == [decision.plan] * 2
    assert decision.plan.codec != Identity(), "at 100 kB/s"
    assert decision.uncompressed_s > decision.step_s


def test_on_a_fast_line_the_answer_is_no_compression(line: dict[str, Any]) -> None:
    line["line"] = FAST
    runs = run_ranks(2, train, Auto(), WARM_UP + 1)
    assert runs[0].plans[-1].codec == runs[1].plans[-1].codec == Identity()


def test_one_rank_alone_has_nothing_to_choose() -> None:
    (run,) = run_ranks(1, train, Auto(), 2 * KEPT)
    assert run.pilot.decisions == []


def test_a_sample_that_is_not_finite_puts_the_decision_off() -> None:
    def some(link: Link) -> Run:
        return train(link, Auto(), WARM_UP + 5, {WARM_UP: float("inf") if link.rank == 1 else 1.0})

    runs = run_ranks(2, some)
    assert [run.pilot.decisions[0][0] for run in runs] == [WARM_UP + 2] * 2


def test_the_next_run_starts_with_what_was_decided(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Auto(path=tmp_path / "auto.json")
    with caplog.at_level(logging.INFO, "gradwire"):
        first = run_ranks(2, train, settings, WARM_UP + 1)
        again = run_ranks(2, train, settings, 3)
    assert [run.plans for run in again] == [[first[0].plans[-1]] * 3] * 2
    assert f"from step {WARM_UP + 1} on, " in caplog.text
    assert "from step 1 on, as in an earlier run: " in caplog.text
    run_ranks(2, train, Auto(), 3)
    assert run_ranks(3, train, settings, 2)[0].pilot.decisions == [], "it was for two ranks"


def test_a_codec_that_breaks_the_contract_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "RESAMPLE", KEPT)
    limit = Auto(codecs=["errbound:2^-4"])

    def run(link: Link) -> list[Plan]:
        return train(link, limit, WARM_UP + 2 * KEPT + 3, dict.fromkeys(range(WARM_UP + 2, 99), 1e-3)).plans

    plans = run_ranks(2, run)
    assert plans[0] == plans[1]
    assert str(plans[0][WARM_UP].codec) == "errbound:2^-4"
    assert plans[0][-1].codec == Identity()


def test_a_line_that_changes_is_followed_by_all_ranks_in_one_step(line: dict[str, Any]) -> None:
    changes, steps = {100: FAST, 260: SLOW}, 400

    def run(link: Link) -> Run:
        one = Run(link, Auto())
        for number in range(1, steps + 1):
            if number in changes:
                line["line"] = changes[number]
                one.exposed_s = 0.001 if changes[number] is FAST else 0.1
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    decided = [(step, decision.plan.codec == Identity()) for step, decision in runs[0].pilot.decisions]
    assert [exact for _, exact in decided] == [False, True, False]
    for (step, _), change in zip(decided[1:], changes, strict=True):
        assert change < step <= change + 100


def test_a_plan_that_cannot_be_chosen_leaves_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "decide", lambda *_: Plan.of("quantise"))
    runs = run_ranks(2, train, Auto(), WARM_UP + 2)
    assert runs[0].plans[-1] == runs[1].plans[-1] == Auto().first_plan
    assert "stays, since no plan could be chosen" in runs[0].pilot.decisions[0][1].reason
