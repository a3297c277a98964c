"""Tuner, sampler and recorder as observers of ``GradientSync``, and observers that fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Auto, Link, Plan
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.recorder import Recorder
from gradwire.autotune.sampler import BucketSampler
from gradwire.autotune.samples import Samples
from gradwire.autotune.settings import BUCKETS
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.sync.bucket.observe import NULL_BUCKET, BucketObserver, StepCost, StepObserver
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.bucket.work import BucketWork, GradientBucket, Route
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layout, Layouts
from gradwire.sync.ledger.ledger import Ledger
from support.ranks import run_ranks
from support.told_line import WARM_UP, tell_line

SHAPES = {"weight": (20, 30), "bias": (40,)}
COUNTS = {"weight": 600, "bias": 40}
LAYOUT = Layout(tuple(COUNTS), tuple(COUNTS.values()), ("", ""))


def sync_of(link: Link, observers: Sequence[StepObserver], plan: Plan | None = None) -> GradientSync:
    plan = Auto().first_plan if plan is None else plan
    context = SyncContext(Exchange(link, plan), SyncOptions(begin_timeout_s=20.0), Ledger(link.rank))
    layouts, residuals = Layouts(list(COUNTS), COUNTS), Residuals(plan, link.rank, link.world, COUNTS)
    return GradientSync(context, layouts, residuals, observers)


def step(sync: GradientSync, number: int) -> BucketWork:
    seed = 100 * number + sync.context.rank
    values = torch.randn(640, generator=torch.Generator().manual_seed(seed))
    sync.begin()
    work = sync.start(GradientBucket(0, values, layout=LAYOUT))
    sync.finish()
    return work


class Broken(StepObserver):
    """Fails on rank 0 in the second step."""

    def __init__(self, place: str) -> None:
        self._place, self._is_due = place, False

    def connected(self, context: SyncContext) -> None:
        self._is_first = context.rank == 0

    def begin(self, step: int, _sync: Any) -> None:
        self._is_due = self._is_first and step == 2
        self._break("begin")

    def bucket(self, _work: BucketWork) -> BucketObserver:
        self._break("bucket")
        return BrokenBucket(self._place) if self._is_due else NULL_BUCKET

    def end(self, _cost: StepCost) -> None:
        self._break("end")

    def _break(self, place: str) -> None:
        if self._is_due and place == self._place:
            raise ValueError(f"{place} is broken")


class BrokenBucket(BucketObserver):
    """Fails on the communication thread."""

    def __init__(self, place: str) -> None:
        self._place = place

    def before(self, _values: torch.Tensor) -> None:
        self._break("before")

    def after(self, _values: torch.Tensor, _exchange: Exchange) -> ExchangeCost:
        self._break("after")
        return ExchangeCost()

    def _break(self, place: str) -> None:
        if place == self._place:
            raise ValueError(f"{place} is broken")


@pytest.mark.parametrize("place", ["begin", "bucket", "end"])
def test_an_observer_that_fails_ends_the_step_on_all_ranks(place: str) -> None:
    def body(link: Link) -> tuple[int, str]:
        sync, number = sync_of(link, [StepObserver(), Broken(place)]), 0
        try:
            for number in range(1, 5):
                step(sync, number)
        except ExchangeError as error:
            return number, str(error)
        finally:
            sync.end()
        return 0, ""

    (number, said), (other, heard) = run_ranks(2, body)
    assert number == 2
    assert f"{place} is broken" in said
    assert other in ((2, 3) if place == "end" else (2,)), "rank 1 may have its average by then"
    assert "rank" in heard


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_bucket_observer_that_fails_ends_the_step(place: str) -> None:
    def body(link: Link) -> tuple[int, str]:
        sync, number = sync_of(link, [Broken(place)]), 0
        try:
            for number in range(1, 5):
                step(sync, number)
        except (ExchangeError, ValueError) as error:
            return number, str(error)
        finally:
            sync.end()
        return 0, ""

    (number, said), (other, _) = run_ranks(2, body)
    assert (number, said) == (2, f"{place} is broken")
    assert other in (2, 3)


def test_a_tuner_and_a_recorder_watch_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_line(monkeypatch)

    def body(link: Link) -> tuple[Any, ...]:
        parameters = [(name, nn.Parameter(torch.zeros(shape))) for name, shape in SHAPES.items()]
        tuner, recorder = Autotuner(Auto(codecs=["bf16"]), BUCKETS, parameters), Recorder("DDP")
        sync = sync_of(link, [tuner])
        step(sync, 1)
        sync.observe(recorder)
        for number in range(2, WARM_UP + 4):
            step(sync, number)
        estimate = recorder.estimate(sync, "1gbit", 4)
        state, plan, decisions = sync.state_dict(), sync.plan, [*tuner.decisions]
        sync.close()
        return plan, decisions, state["auto"], estimate, recorder.recorded.counts

    runs = run_ranks(2, body)
    plan, ((number, decision),), state, estimate, counts = runs[0]
    assert runs[1][:4] == runs[0][:4]
    assert (number, decision.plan) == (WARM_UP + 1, plan)
    assert '"decisions"' in state
    assert estimate is not None
    assert counts == (640,)


class Sampling(StepObserver):
    """Samples every bucket."""

    def __init__(self) -> None:
        self.samples = Samples()

    def bucket(self, work: BucketWork) -> BucketObserver:
        return BucketSampler(self.samples, work, SHAPES, drawn=True)


@pytest.mark.parametrize("samples", [True, False])
def test_a_sampled_bucket_takes_the_route_of_the_thread(
    samples: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport's own all-reduce would leave the sampler out."""
    offered: list[int] = []

    def start_native(work: BucketWork) -> bool:
        offered.append(work.index)
        return False

    monkeypatch.setattr(BucketWork, "start_native", start_native)

    def body(link: Link) -> tuple[list[Route], int]:
        sampling = Sampling()
        sync = sync_of(link, [sampling] if samples else [], Plan.of("identity"))
        sync.context.exchange.starts = True
        routes = [step(sync, number).route for number in (1, 2)]
        sync.begin()
        empty = sync.start(GradientBucket(0, torch.zeros(0), layout=LAYOUT))
        sync.finish()
        sync.close()
        return [*routes, empty.route], len(sampling.samples._values)

    found = run_ranks(2, body)
    assert found == [([Route.THREAD, Route.THREAD, Route.BYPASS], 2 if samples else 0)] * 2
    assert len(offered) == (0 if samples else 4)
