"""A bucket's work ends in one of four ways on each route: done, failed, cancelled, or timed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, LinkTimeoutError, TensorError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import BucketObserver, StepCost, StepObserver
from gradwire.sync.bucket.work import BucketWork, GradientBucket, Route
from gradwire.sync.gradient_sync import GradientSync
from support.fake_buckets import FakeBucket, reducer_over, sync_over

Ranks = Callable[..., list[Any]]
FLOATS, DOUBLES = torch.full((4,), 6.0), torch.full((4,), 6.0, dtype=torch.float64)

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.fixture
def group() -> Iterator[Any]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class Native:
    """The transport's own all-reduce of one bucket, which ends as it is told."""

    def __init__(self, error: ExchangeError | None) -> None:
        self._error = error

    def wait(self, most_s: float) -> ExchangeCost:
        assert most_s > 0
        if self._error is not None:
            raise self._error
        return ExchangeCost(frames=1)


class Waiting:
    """torch's own all-reduce of one bucket, which ends as it is told."""

    def __init__(self, error: RuntimeError | None) -> None:
        self._error = error

    def wait(self, limit: timedelta) -> None:
        assert limit == timedelta(seconds=5)
        if self._error is not None:
            raise self._error

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        done = torch.futures.Future[list[torch.Tensor]]()
        done.set_result([DOUBLES])
        return done


class OwnRoutes(Exchange):
    """An exchange of one rank whose transport starts every bucket, if it is told how that ends."""

    def __init__(self, plan: Plan, native: Native | None = None) -> None:
        super().__init__(loopback(1, timeout_s=5.0)[0], plan)
        self._own, self.starts = native, native is not None
        self.gate, self.runs = Event(), list[BaseException]()

    def start(self, tensor: torch.Tensor, request: BucketRequest) -> Any:
        assert request == BucketRequest(timeout_s=5.0)
        return self._own if tensor.numel() == 4 else None

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        assert self.gate.wait(20)
        for error in self.runs:
            raise error
        return super().run(tensor, request)


def started(
    exchange: OwnRoutes, tensor: torch.Tensor = FLOATS, **how: Any
) -> tuple[GradientSync, BucketWork]:
    sync = sync_over(exchange)
    sync.context.group = how.pop("group", None)
    sync.begin(**how)
    return sync, sync.start(GradientBucket(0, tensor.clone(), wants_future=True))


def opened(plan: Plan, native: Native | None = None) -> OwnRoutes:
    exchange = OwnRoutes(plan, native)
    exchange.gate.set()
    return exchange


def test_work_of_the_thread_is_done_and_counted_once() -> None:
    sync, work = started(opened(Plan()))
    assert work.route is Route.THREAD
    assert work.wait() is work.wait()
    assert work.get_future().wait().tolist() == [6.0] * 4
    sync.finish()
    sync.close()
    assert sync.context.ledger is not None
    assert sync.context.ledger.summary().buckets["bucket 0"].exchanges == 1


def test_work_of_the_thread_that_failed_raises_copies_and_ends_the_exchange() -> None:
    exchange = opened(Plan())
    exchange.runs.append(ZeroDivisionError("of all things"))
    sync, work = started(exchange)
    errors = []
    for wait in (work.wait, work.wait, sync.finish):
        with pytest.raises(ZeroDivisionError, match="of all things") as caught:
            wait()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].__notes__ == [
        "while the communication thread averaged bucket 0 of step 1; create a new link"
    ]
    with pytest.raises(ZeroDivisionError, match="of all things"):
        work.get_future().wait()
    with pytest.raises(ExchangeError, match=r"failed earlier \(of all things\)"):
        sync.begin()
    sync.close()


def test_work_that_has_not_begun_is_cancelled() -> None:
    exchange = OwnRoutes(Plan())
    sync, first = started(exchange)
    second = sync.start(GradientBucket(1, FLOATS.clone(), wants_future=True))
    assert second.cancel()
    exchange.gate.set()
    first.wait()
    with pytest.raises(CancelledError):
        second.wait()
    sync.close()


def test_work_of_a_thread_that_does_not_come_back_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = OwnRoutes(Plan())
    sync, work = started(exchange)
    with monkeypatch.context() as patch:
        patch.setattr("gradwire.sync.thread.longest_s", lambda *_: 0.05)
        with pytest.raises(LinkTimeoutError, match=r"waited 0\.05 s for bucket 0 of step 1 to be averaged"):
            work.wait()
    exchange.gate.set()
    work.wait()
    sync.close()


def test_a_step_that_was_timed_out_keeps_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = OwnRoutes(Plan())
    sync, first = started(exchange)
    second = sync.start(GradientBucket(1, FLOATS.clone()))
    with monkeypatch.context() as patch:
        patch.setattr("gradwire.sync.thread.longest_s", lambda *_: 0.2)
        with pytest.raises(LinkTimeoutError):
            sync.finish()
    sync.cancel()
    exchange.gate.set()
    first.wait()
    with pytest.raises(CancelledError):
        second.wait()
    sync.close()


def test_native_work_is_done_without_a_thread_until_the_thread_has_a_bucket() -> None:
    sync, work = started(opened(Plan(), Native(None)))
    assert work.route is Route.NATIVE
    assert sync.context.thread is None
    assert not work.get_future().done()
    assert work.wait().frames == 1
    assert work.get_future().wait().tolist() == [6.0] * 4
    assert not work.cancel()
    others = [sync.start(GradientBucket(each, torch.ones(9 - 5 * (each == 2)))) for each in (1, 2)]
    assert [each.route for each in others] == [Route.THREAD] * 2, "natives come first"
    sync.finish()
    sync.begin()
    assert sync.start(GradientBucket(0, FLOATS.clone())).route is Route.NATIVE
    sync.finish()
    sync.begin(active=1)
    assert sync.start(GradientBucket(0, FLOATS.clone())).route is Route.THREAD
    sync.finish()
    sync.close()


@pytest.mark.parametrize("error", [ExchangeError("rank 1 is gone"), ExchangeError("nothing happened in 5 s")])
def test_native_work_that_failed_or_is_timed_out_ends_the_exchange(error: ExchangeError) -> None:
    sync, work = started(opened(Plan(), Native(error)))
    for _ in range(2):
        with pytest.raises(ExchangeError, match=str(error)) as caught:
            work.wait()
        assert caught.value.__notes__ == ["while backward averaged bucket 0 of step 1; create a new link"]
    with pytest.raises(ExchangeError, match=str(error)):
        work.get_future().wait()
    with pytest.raises(ExchangeError, match="failed earlier"):
        sync.check()
    sync.close()


def test_other_dtypes_are_averaged_by_torch_over_the_active_ranks_and_counted(group: Any) -> None:
    sync, work = started(opened(Plan()), DOUBLES, group=group, active=3)
    assert work.route is Route.BYPASS
    assert not work.cancel()
    work.wait()
    assert work.get_future().wait().tolist() == [2.0] * 4
    sync.finish()
    sync.close()
    assert sync.context.ledger is not None
    assert len(sync.context.ledger.summary().bypasses) == 1
    assert not sync.context.ledger.summary().buckets


@pytest.mark.parametrize("text", ["Connection closed by peer", "Timed out waiting 5000ms"])
def test_bypassed_work_that_failed_or_is_timed_out_ends_the_exchange(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda _: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: Waiting(RuntimeError(text)))
    sync, work = started(opened(Plan()), DOUBLES)
    with pytest.raises(
        ExchangeError, match=f"rank 0: torch's own all-reduce of bucket 0 failed: {text}"
    ) as caught:
        work.wait()
    assert caught.value.__notes__ == ["while backward averaged bucket 0 of step 1; create a new link"]
    with pytest.raises(ExchangeError, match="failed earlier"):
        sync.check()
    sync.close()


def test_an_empty_bucket_is_done_at_once() -> None:
    sync, work = started(opened(Plan()), torch.ones(0))
    assert work.is_done()
    assert work.get_future().wait().numel() == 0
    sync.finish()
    sync.close()


def test_sparse_gradients_are_refused() -> None:
    reducer, sync = reducer_over(opened(Plan()))
    with pytest.raises(TensorError, match="rank 0: expected dense gradients in bucket 0, got sparse"):
        reducer.take(FakeBucket(0, torch.ones(4).to_sparse(), last=True), last_waits=True)
    sync.close()


class Alone(BucketObserver):
    """Wants buckets on the thread, and doubles what it sees."""

    wants_alone = True

    def __init__(self) -> None:
        self.seen = list[float]()

    def before(self, values: torch.Tensor) -> None:
        self.seen.append(float(values[0]))

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:
        assert exchange.failure is None
        self.seen.append(float(values[0]))
        return ExchangeCost(frames=7)


class Watching(StepObserver):
    """Chooses a plan in the second step, and breaks where it is told."""

    def __init__(self, breaks: str = "", plan: Plan | None = None) -> None:
        self.alone, self.costs, self._breaks, self._plan = Alone(), list[StepCost](), breaks, plan

    def begin(self, step: int, sync: Any) -> Plan | None:
        assert sync.context.step == step - 1
        self._break("begin")
        return self._plan if step == 2 else None

    def bucket(self, work: BucketWork) -> BucketObserver:
        assert work.index == 0
        self._break("bucket")
        return self.alone

    def gathered(self, count: int, wait_s: float) -> None:  # noqa: ARG002
        self._break("gathered")

    def end(self, cost: StepCost) -> None:
        self._break("end")
        self.costs.append(cost)

    def _break(self, where: str) -> None:
        if where == self._breaks:
            raise KeyError(where)


def test_an_observer_sees_buckets_on_the_thread_and_chooses_the_plan() -> None:
    watching, other = Watching(plan=Plan(segment_nbytes=1 << 16)), Watching()
    sync = sync_over(opened(Plan(), Native(None)), observers=(watching, other))
    for _ in range(2):
        sync.begin()
        work = sync.start(GradientBucket(0, FLOATS.clone(), wants_future=True))
        assert work.route is Route.THREAD
        cost = sync.finish()
        assert cost.exchange.frames >= 14
    assert watching.alone.seen == [6.0] * 4
    assert [each.step for each in watching.costs] == [1, 2]
    assert sync.plan.segment_nbytes == 1 << 16
    sync.close()


@pytest.mark.parametrize("where", ["begin", "bucket", "end"])
def test_an_observer_that_breaks_ends_the_step_on_all_ranks(where: str, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[str]:
        breaks = where if exchange.link.rank == 1 else ""
        sync, found = sync_over(exchange, observers=(Watching(breaks),)), list[str]()
        for _ in range(2):  # who has its averages already learns of it in the next step
            try:
                sync.begin()
                sync.start(GradientBucket(0, FLOATS.clone(), wants_future=True))
                sync.finish()
            except ExchangeError as error:
                found.append(str(error))
        sync.close()
        return found

    first, second = run_exchanges(2, body, timeout_s=20.0)
    assert first
    assert second[0] == f"rank 1: Watching.{where} failed in step 1: KeyError('{where}')"


def test_an_observer_that_breaks_at_an_all_gather_ends_the_exchange() -> None:
    sync = sync_over(opened(Plan()), observers=(Watching("gathered"),))
    with pytest.raises(ExchangeError, match=r"rank 0: Watching\.gathered failed in step 1: KeyError"):
        sync.gathered("0.weights", 4, ExchangeCost(), 0.0)
    with pytest.raises(ExchangeError, match=r"failed earlier \(rank 0: Watching\.gathered failed"):
        sync.begin()
    sync.close()


@pytest.mark.parametrize("period", [2, 3])
def test_a_front_end_may_exchange_the_change_of_its_weights_every_few_steps(
    period: int, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> tuple[list[list[float]], int, float]:
        made = sync_over(exchange)
        sync = GradientSync(made.context, made.layouts, made.residuals)
        weights, anchor, seen = torch.zeros(4), torch.zeros(4), list[list[float]]()
        for step in range(1, 2 * period + 1):
            sync.begin()
            weights += 1.0 + exchange.link.rank
            if step % period == 0:
                change = weights - anchor
                sync.start(GradientBucket(0, change))
                cost = sync.finish()
                anchor = anchor + change
                weights = anchor.clone()
                seen.append(weights.tolist())
            else:
                cost = sync.finish()
                assert cost.exchange.wire_nbytes == 0
        found = seen, sync.context.step, cost.exchange.raw_nbytes
        sync.close()
        return found

    each = [[1.5 * period * number] * 4 for number in (1, 2)]
    found = run_exchanges(2, body)
    assert [rank[:2] for rank in found] == [(each, 2 * period)] * 2
    assert all(rank[2] > 0 for rank in found)
