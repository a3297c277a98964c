"""What goes wrong while buckets are on their way surfaces in ``step``, on every rank, and nothing hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, LinkTimeoutError, TensorError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.links.base import Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from support.faulty_link import Fault, FaultyLink
from support.in_backward import weights
from support.pipes import through

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
BUCKETS = Plan(bucket_nbytes=4)  # one for each of the model's four parameters


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def sync(model: nn.Module, exchange: Exchange) -> DSync:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return through(DSync(model, optimizer, exchange.plan, group=exchange.link), exchange)


def train(method: DSync, batch_loss: BatchLoss, steps: int) -> None:
    rank = method.exchange.link.rank
    for _ in range(steps):
        method.step(batch_loss(method.model, method.steps_done, slice(rank, rank + 1)))


def names(error: object, *words: str) -> bool:
    return all(word in str(error) for word in words)


def test_a_damaged_frame_names_rank_peer_and_step_and_changes_no_weight(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[ExchangeError, int]:
        method = sync(make_model(), exchange)
        with pytest.raises(ExchangeError) as caught, method:
            train(method, batch_loss, 8)
        return caught.value, method.steps_done

    def wrap(link: Link) -> Link:
        return FaultyLink(link, [Fault("corrupt", rank=1, step=2 * (1 + 4 + 4 + 1), bit=40 * 8)])

    (first, done), (second, others) = run_exchanges(2, body, BUCKETS, wrap=wrap)
    assert names(first, "rank 0", "rank 1", "step 0", "checksum")
    assert names(second, "rank 0", "rank 1", "step")
    note = "while the communication thread averaged bucket 2 of step 3; create a new DSync"
    assert first.__notes__ == [note]
    assert done == others == 2, "the third step is not done"


def test_an_exception_arrives_as_it_is_and_stays(make_model: MakeModel, batch_loss: BatchLoss) -> None:
    class Broken(Exchange):
        calls = 0

        def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
            self.calls += 1
            if self.calls == 6:
                raise ZeroDivisionError("the second bucket of the second step, of all things")
            return super().run(tensor, request)

    model, exchange = make_model(), Broken(loopback(1)[0], BUCKETS)
    method = sync(model, exchange)
    train(method, batch_loss, 1)
    before = weights(model)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="of all things"):
            train(method, batch_loss, 1)
    method.close()
    assert torch.equal(weights(model), before)
    assert exchange.calls == 6, "the link was used after the failure"


def test_a_silent_peer_is_a_timeout(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    finished = threading.Event()

    def body(exchange: Exchange) -> tuple[BaseException, float] | None:
        method = sync(make_model(), exchange)
        train(method, batch_loss, 2)
        if exchange.link.rank == 1:  # it neither goes on nor closes its link
            finished.wait(20)
            method.close()
            return None
        started = time.perf_counter()
        with pytest.raises(ExchangeError) as caught, method:
            train(method, batch_loss, 1)
        finished.set()
        return caught.value, time.perf_counter() - started

    error, seconds = run_exchanges(2, body, BUCKETS, timeout_s=0.5)[0]
    assert isinstance(error.__cause__, LinkTimeoutError)
    assert names(error, "rank 0", "rank 1", "step 0", "0.5 s")
    assert seconds < 10


def test_a_peer_that_leaves_is_noticed_at_once(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> float:
        method = sync(make_model(), exchange)
        started = time.perf_counter()
        if exchange.link.rank == 1:
            train(method, batch_loss, 3)
            method.close()
            exchange.close()
        else:
            with pytest.raises(ExchangeError), method:
                train(method, batch_loss, 4)
        return time.perf_counter() - started

    assert max(run_exchanges(3, body, BUCKETS, timeout_s=30.0)) < 15


class Stumble(torch.autograd.Function):
    """Fails in the middle of backward."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError(f"stumbled over {grad.numel()} gradients")


@pytest.mark.parametrize("in_a_block", [True, False])
def test_backward_that_fails_with_buckets_on_their_way_ends_all_ranks(
    in_a_block: bool, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def stumble(model: nn.Sequential) -> torch.Tensor:
        stumbling: Any = Stumble.apply
        return model[2](stumbling(model[1](model[0](torch.ones(3, 5))))).sum()  # type: ignore[no-any-return]

    def body(exchange: Exchange) -> tuple[str, torch.Tensor]:
        model = make_model()
        method = sync(model, exchange)
        train(method, batch_loss, 1)
        before = weights(model)
        if exchange.link.rank != 1:
            with pytest.raises(ExchangeError) as failed, method:
                train(method, batch_loss, 1)
        elif in_a_block:
            with pytest.raises(ZeroDivisionError, match="stumbled over 21"), method:
                method.step(lambda: stumble(model))
            with pytest.raises(ExchangeError, match="closed") as failed:
                train(method, batch_loss, 1)
        else:
            with pytest.raises(ZeroDivisionError, match="stumbled over 21"):
                method.step(lambda: stumble(model))
            with pytest.raises(ExchangeError) as failed:
                train(method, batch_loss, 1)
            method.close()
            assert names(failed.value, "rank 1: step 2 failed with buckets in flight")
            assert names(failed.value, "(stumbled over 21 gradients)", "create the training method again")
        assert torch.equal(weights(model), before)
        return str(failed.value), before

    started = time.perf_counter()
    results = run_exchanges(3, body, BUCKETS, timeout_s=20.0)
    assert time.perf_counter() - started < 15
    assert all(torch.equal(before, results[0][1]) for _, before in results)


def test_compute_that_fails_before_any_bucket_is_ready_may_be_repeated(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model = make_model()
        with sync(model, exchange) as method:
            train(method, batch_loss, 1)
            with pytest.raises(ZeroDivisionError):
                method.step(lambda: torch.ones(()) * (1 // 0))
            with pytest.raises(TensorError, match="got one without a graph"):
                method.step(lambda: torch.ones(()))
            train(method, batch_loss, 2)
        return weights(model)

    def straight(exchange: Exchange) -> torch.Tensor:
        with sync(make_model(), exchange) as method:
            train(method, batch_loss, 3)
        return weights(method.model)

    wanted = run_exchanges(2, straight, BUCKETS)[0]
    assert all(torch.equal(result, wanted) for result in run_exchanges(2, body, BUCKETS))


def test_an_interrupt_while_waiting_leaves_the_method_closed_to_steps(
    make_model: MakeModel, batch_loss: BatchLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    model = make_model()
    method = sync(model, Exchange(loopback(1)[0], BUCKETS))
    with monkeypatch.context() as patch:
        patch.setattr("gradwire.sync.bucket.work.BucketWork.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(method, batch_loss, 1)
    before = weights(model)
    with pytest.raises(ExchangeError, match="step 1 failed with buckets in flight"):
        train(method, batch_loss, 1)
    method.close()
    assert torch.equal(weights(model), before)
