from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync, PipeSGD
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, FrameError, LinkError, LinkTimeoutError, PayloadError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.links.base import Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.context import SyncContext
from gradwire.sync.daemon import SWITCH_S, start
from gradwire.sync.thread import CallWork, CommunicationThread, Lanes, longest_s
from support.faulty_link import Fault, FaultyLink
from support.meshes import sockets
from support.pipes import pipe_sgd, through

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class _Broken(Exchange):
    """Fails at the third gradient, as a bug would."""

    calls = 0

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        self.calls += 1
        if self.calls == 3:
            raise ZeroDivisionError("the third gradient, of all things")
        return super().run(tensor, request)


class _Gated(Exchange):
    """Counts gradients, and keeps the first until the gate opens."""

    def __init__(self) -> None:
        super().__init__(loopback(1)[0], Plan())
        self.calls = 0
        self.entered, self.gate = threading.Event(), threading.Event()

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        self.calls += 1
        self.entered.set()
        assert self.gate.wait(20)
        return super().run(tensor, request)


def _pipe(model: nn.Module, exchange: Exchange, pipeline: int = 2) -> PipeSGD:
    return through(pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange, pipeline), exchange)


def _weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _train(method: PipeSGD, batch_loss: BatchLoss, steps: int) -> None:
    rank = method.exchange.link.rank
    for _ in range(steps):
        method.step(batch_loss(method.model, method.steps_done, slice(rank, rank + 1)))


def _join_all() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("gradwire"):
            thread.join(5)


def _names(error: object, *words: str) -> bool:
    return all(word in str(error) for word in words)


def test_an_exception_arrives_as_it_is_and_stays(make_model: MakeModel, batch_loss: BatchLoss) -> None:
    model = make_model()
    exchange = _Broken(loopback(1)[0], Plan())
    method = _pipe(model, exchange)
    _train(method, batch_loss, 4)
    before = _weights(model)
    depths = []
    for again in (method.drain, lambda: _train(method, batch_loss, 1), method.drain, method.drain):
        with pytest.raises(ZeroDivisionError, match="the third gradient, of all things") as caught:
            again()
        note = "while the communication thread averaged gradient of step 3; create a new PipeSGD"
        assert caught.value.__notes__ == [note]
        assert caught.traceback[-1].name == "run"
        depths.append(len(caught.traceback))
    assert depths[0] == depths[2] == depths[3], "a traceback that grows holds on to every call before"
    with pytest.raises(ZeroDivisionError), method:
        _train(method, batch_loss, 1)
    assert torch.equal(_weights(model), before)
    assert exchange.calls == 3, "the link was used after the failure"


@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_a_damaged_frame_names_rank_peer_and_step(
    pipeline: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[ExchangeError, int, int]:
        model, updates = make_model(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: updates.append(1))
        method = pipe_sgd(model, optimizer, exchange, pipeline)
        with pytest.raises(ExchangeError) as caught, method:
            _train(method, batch_loss, 8)
        return caught.value, len(updates), method.steps_done

    def wrap(link: Link) -> Link:
        return FaultyLink(link, [Fault("corrupt", rank=1, step=8, bit=40 * 8)])  # in the third gradient

    (first, *counts), (second, *others) = run_exchanges(2, body, wrap=wrap)
    assert _names(first, "rank 0", "rank 1", "step 0", "checksum")
    assert _names(second, "rank 0", "rank 1", "step")
    assert counts == others == [2, 2 + pipeline], "the third gradient, wanted K steps later, is not applied"


def test_a_silent_peer_is_a_timeout_on_the_computing_thread(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    finished = threading.Event()

    def body(exchange: Exchange) -> tuple[BaseException, float] | None:
        method = _pipe(make_model(), exchange)
        _train(method, batch_loss, 3)
        if exchange.link.rank == 1:  # it neither goes on nor closes its link
            finished.wait(20)
            method.close()
            return None
        started = time.perf_counter()
        with pytest.raises(ExchangeError) as caught, method:
            _train(method, batch_loss, 5)
        finished.set()
        return caught.value, time.perf_counter() - started

    error, seconds = run_exchanges(2, body, timeout_s=0.5)[0]
    assert isinstance(error.__cause__, LinkTimeoutError)
    assert _names(error, "rank 0", "rank 1", "step 0", "0.5 s")
    assert seconds < 10


def test_a_peer_that_leaves_is_noticed_at_once(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> float:
        method = _pipe(make_model(), exchange)
        started = time.perf_counter()
        if exchange.link.rank == 1:
            _train(method, batch_loss, 4)
            exchange.close()
            method.abort()
        else:
            with pytest.raises(ExchangeError), method:
                _train(method, batch_loss, 8)
        return time.perf_counter() - started

    assert max(run_exchanges(3, body, timeout_s=30.0)) < 10


@pytest.mark.parametrize("failing", [False, True])
def test_the_end_of_a_block(failing: bool, make_model: MakeModel, batch_loss: BatchLoss) -> None:
    """A normal end applies everything; an exception drops what has not been sent."""
    model, exchange = make_model(), _Gated()
    origin = _weights(model)
    with suppress(KeyError), _pipe(model, exchange, pipeline=3) as method:
        _train(method, batch_loss, 3)
        assert exchange.entered.wait(20)
        threading.Timer(0.5 if failing else 0.0, exchange.gate.set).start()
        if failing:
            raise KeyError
    assert exchange.calls == (1 if failing else 3)
    assert torch.equal(_weights(model), origin) == failing


def test_close_finishes_what_peers_wait_for_but_applies_nothing(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> bool:
        model, rank = make_model(), exchange.link.rank
        method = _pipe(model, exchange, pipeline=4)
        for t in range(4):
            time.sleep(0.02 * rank)
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
        method.close()
        method.close()
        with pytest.raises(ExchangeError, match=r"close\(\) dropped 4 gradients in flight"):
            method.drain()
        return torch.equal(_weights(model), _weights(make_model()))

    assert run_exchanges(3, body) == [True] * 3


def test_an_exchange_that_never_returns_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("bucket.work", "thread"):
        monkeypatch.setattr(f"gradwire.sync.{module}.longest_s", lambda *_: 0.05)
    context = SyncContext(exchange := _Gated())
    communication, gradient = CommunicationThread(context), torch.zeros(3)
    work = CallWork(context, "the gradient of step 7", lambda own: own.all_reduce(gradient), None)
    communication.put(work)
    with pytest.raises(
        LinkTimeoutError, match=r"rank 0 waited 0\.05 s for the gradient of step 7 to be exchanged"
    ):
        work.wait()
    with pytest.raises(LinkTimeoutError, match=r"did not end within 0\.05 s"):
        communication.close()
    exchange.gate.set()
    monkeypatch.undo()
    work.wait()
    assert work.value.wire_nbytes == 0
    _join_all()


def test_a_method_whose_peer_dies_during_the_measurements_leaves_no_thread(make_model: MakeModel) -> None:
    link, peer = loopback(2, timeout_s=5.0)
    peer.close()
    model = make_model()
    with pytest.raises(ExchangeError):
        DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), group=link)
    _join_all()  # the fixture then finds no thread
    link.close()


@pytest.mark.parametrize(("world", "count", "frames"), [(2, 100, 2), (4, 100, 6), (2, 4 << 18, 2 * 5)])
def test_patience_covers_every_frame_of_a_slow_network(world: int, count: int, frames: int) -> None:
    exchange = Exchange(loopback(world, timeout_s=7.0)[0], Plan(segment_nbytes=1 << 20))
    assert longest_s(exchange, count) - longest_s(Exchange(loopback(1)[0], Plan()), count) == 2 * frames * 7.0


def test_d_sync_reports_a_dead_peer_too(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> list[str]:
        model, rank = make_model(), exchange.link.rank
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        for t in range(2):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
        if rank == 1:
            exchange.close()
            return []
        with pytest.raises(ExchangeError) as caught:
            method.step(batch_loss(model, 2, slice(rank, rank + 1)))
        return [str(caught.value), *caught.value.__notes__]

    said, *notes = run_exchanges(2, body)[0]
    assert _names(said, "rank 0", "rank 1", "step 0")
    assert notes == ["while exchanging the gradient of step 3; create a new DSync"]


@pytest.mark.parametrize("usual_s", [0.005, 0.0001])
def test_threads_switch_quickly_while_one_communicates(usual_s: float) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(usual_s)
    try:
        released = threading.Event()
        running = [start(released.wait, f"thread {i}", released.set, released.set) for i in range(2)]
        assert sys.getswitchinterval() == pytest.approx(min(usual_s, SWITCH_S), abs=2e-6)
        released.set()
        for thread in running:
            thread.join(10.0)
        assert sys.getswitchinterval() == pytest.approx(usual_s, abs=2e-6)
    finally:
        sys.setswitchinterval(before)


def test_a_thread_that_cannot_start_ends_the_exchange_and_changes_no_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    context, before = SyncContext(Exchange(loopback(1)[0], Plan())), sys.getswitchinterval()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Lanes(context).put(CallWork(context, "it", lambda _: None, None))
    assert sys.getswitchinterval() == before
    assert context.exchange.failure == "can't start new thread"


def test_a_switch_interval_that_someone_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    try:
        released = threading.Event()
        thread = start(released.wait, "thread", released.set, released.set)
        sys.setswitchinterval(0.02)
        released.set()
        thread.join(10.0)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)


def test_a_lane_may_fail_while_another_lane_starts_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [SyncContext(Exchange(loopback(1)[0], Plan())) for _ in range(2)]
    for each in contexts:
        each.siblings = contexts

    def start_late(*args: Any) -> threading.Thread:
        thread = start(*args)
        contexts[0].fail(ExchangeError("the other lane has failed"))
        return thread

    monkeypatch.setattr("gradwire.sync.thread.start", start_late)
    communication = CommunicationThread(contexts[1])
    work = CallWork(contexts[1], "it", lambda exchange: exchange.all_reduce(torch.zeros(3)), None)
    communication.put(work)
    with pytest.raises(ExchangeError, match="the other lane has failed"):
        work.wait()
    communication.close()


@pytest.mark.parametrize(
    ("cause", "is_kept"),
    [(FrameError("truncated"), True), (PayloadError("truncated"), True), (LinkError("it has closed"), False)],
)
def test_a_refused_frame_stays_the_reason_when_peers_leave(cause: Exception, is_kept: bool) -> None:
    meshes = [sockets(2, 5.0) for _ in range(2)]
    contexts = [SyncContext(Exchange(own, Plan()), ranks=range(2)) for own, _ in meshes]
    for each in contexts:
        each.siblings, each.link.step = contexts, 2
    peer = meshes[1][1]
    peer.step = 1
    Exchange(peer, Plan()).close()
    error = ExchangeError("the first reason")
    error.__cause__ = cause
    reason = contexts[0].fail(error)
    assert (reason is error) == is_kept
    assert ("after step 1" in str(reason)) != is_kept
    meshes[0][1].close()
