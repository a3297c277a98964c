from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.codecs import parse
from gradwire.errors import SpecError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord
from support.noise import likely, undisturbed
from support.pipes import pipe_sgd, through

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
LR = 2.0**-4  # lr * gradient is exact, so the oracle rounds where torch rounds
SGD: dict[str, Any] = {"lr": LR}
MOMENTUM: dict[str, Any] = {"lr": LR, "momentum": 0.9, "weight_decay": 1e-2}


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _train(
    exchange: Exchange,
    model: nn.Module,
    batch_loss: BatchLoss,
    steps: int,
    options: dict[str, Any],
    **pipe: int,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the weights after every step, and after the drain."""
    rank = exchange.link.rank
    keywords: dict[str, Any] = {"correction": "none", **pipe}
    after = []
    optimizer = torch.optim.SGD(model.parameters(), **options)
    with through(pipe_sgd(model, optimizer, exchange, **keywords), exchange) as method:
        for t in range(steps):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
            after.append(_flat(model))
    return after, _flat(model)


def _delayed(
    model: nn.Module, batch_loss: BatchLoss, world: int, steps: int, pipeline: int, start: int = 0
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Do w[t] = w[t-1] - lr g[t-K] by hand, in one process; g = 0 up to ``start``."""
    weights = list(model.parameters())
    means: dict[int, list[torch.Tensor]] = {}
    after = []

    def update(t: int) -> None:
        with torch.no_grad():
            for weight, mean in zip(weights, means.get(t, []), strict=False):
                weight.copy_(weight - LR * mean)

    for t in range(start + 1, steps + 1):
        update(t - pipeline)
        ranks = [slice(r, r + 1) for r in range(world)]
        local = [torch.autograd.grad(batch_loss(model, t - 1, rank)(), weights) for rank in ranks]
        means[t] = [torch.stack(same).sum(0) / world for same in zip(*local, strict=True)]
        after.append(_flat(model))
    for t in range(max(start, steps - pipeline) + 1, steps + 1):
        update(t)
    return after, _flat(model)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 5])
def test_is_the_delayed_update_bit_for_bit(
    world: int, pipeline: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    results = run_exchanges(world, lambda e: _train(e, make_model(), batch_loss, 9, SGD, pipeline=pipeline))
    after, end = _delayed(make_model(), batch_loss, world, 9, pipeline)
    for steps, drained in results:
        assert [torch.equal(*pair) for pair in zip(steps, after, strict=True)] == [True] * 9
        assert torch.equal(drained, end)
    assert not torch.equal(after[-1], end)


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("pipeline", [2, 3])
def test_more_ranks_differ_from_the_delayed_update_by_rounding_only(
    world: int, pipeline: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    results = run_exchanges(world, lambda e: _train(e, make_model(), batch_loss, 9, SGD, pipeline=pipeline))
    after, end = _delayed(make_model().double(), batch_loss, world, 9, pipeline)
    torch.testing.assert_close(torch.stack(results[0][0]).double(), torch.stack(after), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0][1].double(), end, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(drained, results[0][1]) for _, drained in results)


def test_the_first_steps_make_no_update_at_all(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    """Weight decay and momentum would move the weights even by a gradient of zero."""
    ((after, _),) = run_exchanges(1, lambda e: _train(e, make_model(), batch_loss, 4, MOMENTUM, pipeline=3))
    origin = _flat(make_model())
    assert [torch.equal(weights, origin) for weights in after] == [True, True, True, False]


def test_momentum_meets_the_delayed_gradients_in_order(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    results = run_exchanges(2, lambda e: _train(e, make_model(), batch_loss, 8, MOMENTUM, pipeline=2))
    model = make_model()
    weights, velocity = list(model.parameters()), [torch.zeros_like(p) for p in model.parameters()]
    means: list[list[torch.Tensor]] = []
    for t in range(10):  # the last two rounds only apply
        if t >= 2:
            with torch.no_grad():
                for w, v, g in zip(weights, velocity, means[t - 2], strict=True):
                    v.mul_(0.9 if t > 2 else 0.0).add_(g + 1e-2 * w)
                    w.sub_(LR * v)
        if t < 8:
            local = [torch.autograd.grad(batch_loss(model, t, slice(r, r + 1))(), weights) for r in range(2)]
            means.append([(a + b) / 2 for a, b in zip(*local, strict=True)])
    torch.testing.assert_close(results[0][1], _flat(model), rtol=1e-5, atol=1e-6)
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize(
    "spec", ["identity", "fp16", "errbound:2^-10", "quantize:8", "terngrad", "topk:0.25"]
)
@pytest.mark.parametrize("world", [2, 3])
def test_pipeline_1_is_d_sync_bit_for_bit(
    spec: str, world: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def synchronous(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        method = DSync(
            model, torch.optim.SGD(model.parameters(), **MOMENTUM), exchange.plan, group=exchange.link
        )
        for t in range(6):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    plan = Plan(codec=parse(spec))
    piped = run_exchanges(world, lambda e: _train(e, make_model(), batch_loss, 6, MOMENTUM, pipeline=1), plan)
    plain = run_exchanges(world, synchronous, plan)
    assert all(torch.equal(drained, plain[0]) for _, drained in piped)


@pytest.mark.parametrize("spec", ["identity", "errbound:2^-10"])
def test_warm_up_is_d_sync_and_the_pipeline_starts_empty_after_it(
    spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def synchronous(exchange: Exchange) -> list[torch.Tensor]:
        model, rank = make_model(), exchange.link.rank
        method = DSync(
            model, torch.optim.SGD(model.parameters(), **MOMENTUM), exchange.plan, group=exchange.link
        )
        after = []
        for t in range(4):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
            after.append(_flat(model))
        return after

    def piped(exchange: Exchange) -> list[torch.Tensor]:
        return _train(exchange, make_model(), batch_loss, 7, MOMENTUM, pipeline=2, warmup_steps=4)[0]

    plan = Plan(codec=parse(spec))
    plain, warm = run_exchanges(2, synchronous, plan)[0], run_exchanges(2, piped, plan)[0]
    assert [torch.equal(*pair) for pair in zip(warm[:4], plain, strict=True)] == [True] * 4
    assert torch.equal(warm[4], warm[3])
    assert torch.equal(warm[5], warm[3])
    assert not torch.equal(warm[6], warm[3])


def test_after_warm_up_the_update_is_delayed(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    results = run_exchanges(
        2, lambda e: _train(e, make_model(), batch_loss, 9, SGD, pipeline=2, warmup_steps=3)
    )
    model = make_model()
    for t in range(3):
        _delayed(model, batch_loss, 2, t + 1, 1, start=t)
    after, end = _delayed(model, batch_loss, 2, 9, 2, start=3)
    assert torch.equal(torch.stack(results[1][0][3:]), torch.stack(after))
    assert torch.equal(results[1][1], end)


def test_drain_applies_everything_and_starts_a_new_pipeline(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[list[torch.Tensor], StepRecord, StepRecord]:
        model, rank = make_model(), exchange.link.rank
        loss = [batch_loss(model, t, slice(rank, rank + 1)) for t in range(8)]
        with pipe_sgd(
            model, torch.optim.SGD(model.parameters(), **SGD), exchange, correction="none"
        ) as method:
            for t in range(5):
                method.step(loss[t])
            drained, again = method.drain(), method.drain()
            seen = [_flat(model)]
            for t in range(5, 8):
                method.step(loss[t])
                seen.append(_flat(model))
        return seen, drained, again

    model = make_model()
    _, end = _delayed(model, batch_loss, 2, 5, 2)
    for seen, drained, again in run_exchanges(2, body):
        assert torch.equal(seen[0], end)
        assert [torch.equal(weights, end) for weights in seen] == [True, True, True, False]
        assert drained.steps == 0
        assert drained.cost.raw_nbytes >= 2 * 4 * 56
        assert again.cost.raw_nbytes == 0


def test_synchronise_on_the_way_drains_first(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        with pipe_sgd(
            model, torch.optim.SGD(model.parameters(), **SGD), exchange, correction="none"
        ) as method:
            for t in range(5):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
            if rank == 1:
                nn.init.zeros_(next(model.parameters()))
            method.synchronise()
            return _flat(model)

    _, end = _delayed(make_model(), batch_loss, 2, 5, 2)
    assert all(torch.equal(result, end) for result in run_exchanges(2, body))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_steps_does_not_reach_the_network(
    set_to_none: bool, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        with pipe_sgd(model, optimizer, exchange, correction="none") as method:
            for t in range(6):
                optimizer.zero_grad(set_to_none)
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
                optimizer.zero_grad(set_to_none)
        return _flat(model)

    _, end = _delayed(make_model(), batch_loss, 2, 6, 2)
    assert all(torch.equal(result, end) for result in run_exchanges(2, body))


def test_a_hook_of_the_optimizer_sees_the_averaged_gradient(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
        seen: list[torch.Tensor] = []

        def hook(*_: object) -> None:
            seen.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))

        optimizer.register_step_pre_hook(hook)
        with pipe_sgd(model, optimizer, exchange) as method:
            method.step(batch_loss(model, 0, slice(rank, rank + 1)))
        return seen[0]

    model = make_model()
    weights = list(model.parameters())
    local = [torch.autograd.grad(batch_loss(model, 0, slice(r, r + 1))(), weights) for r in range(2)]
    mean = torch.cat([(a + b).flatten() / 2 for a, b in zip(*local, strict=True)])
    assert all(torch.equal(seen, mean) for seen in run_exchanges(2, body))


@pytest.mark.parametrize("spec", ["errbound:2^-10", "bfp:7x16", "inceptionn:2^-10"])
def test_lossy_codecs_leave_all_ranks_with_the_same_bits(
    spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(codec=parse(spec))
    results = run_exchanges(3, lambda e: _train(e, make_model(), batch_loss, 8, MOMENTUM, pipeline=2), plan)
    assert all(torch.equal(torch.stack(after), torch.stack(results[0][0])) for after, _ in results)
    assert not torch.equal(results[0][1], _flat(make_model()))


def test_no_gradient_memory_is_allocated_per_step(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    class Seen(Exchange):
        addresses: list[int]

        def run(self, tensor: torch.Tensor, request: BucketRequest) -> Any:
            self.addresses.append(tensor.data_ptr())
            return super().run(tensor, request)

    def body(exchange: Exchange) -> list[int]:
        seen = Seen(exchange.link, exchange.plan)
        seen.addresses = []
        _train(seen, make_model(), batch_loss, 9, SGD, pipeline=3)
        return seen.addresses

    (addresses,) = run_exchanges(1, body)
    assert len(addresses) == 9
    assert addresses == addresses[:3] * 3
    assert len(set(addresses)) == 3


def test_compute_that_fails_leaves_the_pipeline_whole(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        with pipe_sgd(
            model, torch.optim.SGD(model.parameters(), **SGD), exchange, correction="none"
        ) as method:
            method.step(batch_loss(model, 0, slice(rank, rank + 1)))
            with pytest.raises(ZeroDivisionError):
                method.step(lambda: torch.ones(()) * (1 // 0))
            for t in range(1, 6):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    _, end = _delayed(make_model(), batch_loss, 2, 6, 2)
    assert all(torch.equal(result, end) for result in run_exchanges(2, body))


@pytest.mark.parametrize(("pipeline", "warmup_steps"), [(0, 0), (-1, 0), (2, -1)])
def test_impossible_pipelines_are_refused(
    pipeline: int, warmup_steps: int, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    before = threading.active_count()

    def body(exchange: Exchange) -> None:
        model = make_model()
        wrong = "warmup_steps" if warmup_steps else "pipeline"
        with pytest.raises(
            SpecError, match=f"expected a whole number .* for {wrong}, got {warmup_steps or pipeline}"
        ):
            pipe_sgd(model, torch.optim.SGD(model.parameters(), **SGD), exchange, pipeline, warmup_steps)

    run_exchanges(1, body)
    assert threading.active_count() == before


def test_times_add_up_to_the_wall_time(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[StepRecord, float]:
        model, rank = make_model(), exchange.link.rank

        def compute_loss(t: int) -> torch.Tensor:
            time.sleep(0.01)
            return batch_loss(model, t, slice(rank, rank + 1))()

        method = pipe_sgd(model, torch.optim.SGD(model.parameters(), **SGD), exchange)
        started = time.perf_counter()
        total = StepRecord()
        for t in range(10):
            total += method.step(lambda t=t: compute_loss(t))  # type: ignore[misc]
        total += method.drain()
        wall_s = time.perf_counter() - started
        method.close()
        return total, wall_s

    def attempt() -> None:
        for record, wall_s in run_exchanges(2, body, Plan(codec=parse("quantize:8"))):
            assert record.steps == 10
            assert record.step_s <= wall_s + 1e-6
            likely(record.step_s > 0.95 * wall_s - 0.005, record, wall_s)
            assert record.compute_s >= 0.1
            assert record.codec_s >= 0
            assert record.exposed_s >= 0

    undisturbed(attempt)
