"""D-Sync with buckets: the sums of one bucket, the same bits on all ranks, whatever backward does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradwire import DSync
from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.errors import TensorError
from gradwire.exchange import Exchange
from gradwire.exchange.request import BucketRequest
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord
from support.in_backward import batch, copies_of, mean_square, weights
from support.pipes import made

Ranks = Callable[..., list[Any]]
Make = Callable[[], nn.Module]
Loss = Callable[[nn.Module, int, int], torch.Tensor]
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}
STAR = Plan(algorithm="star")  # sums in the order of the ranks, wherever the buckets' borders are


pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def trained(
    run_exchanges: Ranks,
    world: int,
    plan: Plan,
    make: Make,
    loss: Loss = mean_square,
    between: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda _model, _optimizer: None,
    steps: int = 4,
) -> torch.Tensor:
    """Return the weights, the same bits on all ranks, after some steps by the plan's method."""

    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)
        with made(model, optimizer, exchange) as method:
            for t in range(steps):
                between(model, optimizer)
                method.step(lambda t=t: loss(model, t, rank))
        return weights(model)

    first, *others = run_exchanges(world, body, plan)
    assert all(torch.equal(other, first) for other in others)
    return first  # type: ignore[no-any-return]


class Seen(Exchange):
    """Remembers the lengths that it averages, and tells when the first is done."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.link, exchange.plan)
        self.counts: list[int] = []
        self.one_is_done = threading.Event()

    def run(self, tensor: torch.Tensor, request: BucketRequest) -> ExchangeCost:
        self.counts.append(tensor.numel())
        accounting = super().run(tensor, request)
        self.one_is_done.set()
        return accounting


@pytest.mark.parametrize("bucket_nbytes", [4, 64, 200, 4000])
@pytest.mark.parametrize(("algorithm", "world"), [("star", 1), ("star", 3), ("star", 4), ("ring", 2)])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_where_order_does_not_change_the_result_is_that_of_one_bucket(
    bucket_nbytes: int,
    algorithm: str,
    world: int,
    pipeline: int,
    run_exchanges: Ranks,
    make_model: Callable[[], nn.Sequential],
) -> None:
    plan = Plan(algorithm=algorithm, pipeline=pipeline)
    whole = trained(run_exchanges, world, plan, make_model)
    assert torch.equal(
        trained(run_exchanges, world, replace(plan, bucket_nbytes=bucket_nbytes), make_model), whole
    )
    assert not torch.equal(whole, weights(make_model()))


@pytest.mark.parametrize("world", [3, 4])
def test_elsewhere_it_differs_by_rounding_only(
    world: int, run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    whole = trained(run_exchanges, world, Plan(), make_model)
    cut = trained(run_exchanges, world, Plan(bucket_nbytes=64), make_model)
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["errbound:2^-10", "quantize:8", "terngrad", "topk:0.25"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_lossy_codecs_leave_all_ranks_with_the_same_bits(
    spec: str, pipeline: int, run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    plan = Plan(parse(spec), pipeline=pipeline, bucket_nbytes=64)
    assert not torch.equal(
        trained(run_exchanges, 3, plan, make_model),
        trained(run_exchanges, 3, replace(plan, codec=Plan().codec), make_model),
    )


def test_the_exchange_begins_while_backward_computes(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[bool]:
        seen, overlapped = Seen(exchange), list[bool]()

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
                overlapped.append(seen.one_is_done.wait(20 if overlapped else 0))
                return grad

        first, last = nn.Linear(5, 5), nn.Linear(5, 5)
        model = nn.Sequential(first, last)
        with made(model, torch.optim.SGD(model.parameters(), lr=0.1), seen) as method:
            slow: Any = Slow.apply
            for _ in range(2):  # the first pass counts gradients
                seen.one_is_done.clear()
                method.step(lambda: last(slow(first(torch.ones(2, 5)))).sum())
        assert seen.counts == [30, 30] * 2
        return overlapped

    assert run_exchanges(2, body, Plan(bucket_nbytes=4 * 30)) == [[False, True], [False, True]]


def test_a_bucket_that_is_ready_early_waits_for_its_turn(run_exchanges: Ranks) -> None:
    """Rank 1 computes the layers the other way round, so that its backward ends with the last parameter."""

    def body(exchange: Exchange) -> tuple[list[int], torch.Tensor]:
        layers, seen = [nn.Linear(n, 1, bias=False) for n in (2, 3, 4)], Seen(exchange)
        model = nn.ModuleList(layers)
        if exchange.link.rank == 1:
            layers.reverse()

        def compute_loss() -> torch.Tensor:
            total = torch.zeros(1)
            for layer in layers:  # a chain: backward takes the layers in the reverse order
                total = layer(torch.ones(layer.in_features)) * (1 + 0.01 * total)
            return total.sum()

        with made(model, torch.optim.SGD(model.parameters(), lr=0.1), seen) as method:
            for _ in range(2):
                method.step(compute_loss)
        return seen.counts, weights(model)

    (counts, first), (others, second) = run_exchanges(2, body, Plan(bucket_nbytes=4))
    assert counts == others == [4, 3, 2] * 2
    assert torch.equal(first, second)


def test_parameters_that_only_some_ranks_reach_count_as_zero_elsewhere(run_exchanges: Ranks) -> None:
    make = copies_of(lambda: nn.ModuleList(nn.Linear(5, 3) for _ in range(4)))

    def some(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        layers = list(model.children())
        return torch.stack([layers[i](batch(step, rank)).square().mean() for i in {rank, step % 3}]).sum()

    whole = trained(run_exchanges, 3, STAR, make, some)
    assert torch.equal(trained(run_exchanges, 3, replace(STAR, bucket_nbytes=80), make, some), whole)


class Tied(nn.Module):
    """The first and the last layer share their weight, which is larger than a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x).tanh()).tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize("bucket_nbytes", [4, 24, 240])
def test_tied_weights_go_out_once_both_uses_are_there(bucket_nbytes: int, run_exchanges: Ranks) -> None:
    make = copies_of(Tied)
    whole = trained(run_exchanges, 3, STAR, make)
    assert torch.equal(trained(run_exchanges, 3, replace(STAR, bucket_nbytes=bucket_nbytes), make), whole)


def test_frozen_parameters_are_not_exchanged_even_if_frozen_on_the_way(
    run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    def make() -> nn.Module:
        model = make_model()
        model[0].bias.requires_grad_(False)
        return model

    def freeze(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        model.get_parameter("2.weight").requires_grad_(False)

    for between in (lambda _model, _optimizer: None, freeze):
        whole = trained(run_exchanges, 2, STAR, make, between=between)
        cut = trained(run_exchanges, 2, replace(STAR, bucket_nbytes=4), make, between=between)
        assert torch.equal(cut, whole)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_the_user_replaces_are_the_ones_exchanged(
    set_to_none: bool, run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    def between(_model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad(set_to_none)

    def replaced_within(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        model.zero_grad(set_to_none)
        return mean_square(model, step, rank)

    plan = replace(STAR, bucket_nbytes=64)
    whole = trained(run_exchanges, 3, STAR, make_model)
    assert torch.equal(trained(run_exchanges, 3, plan, make_model, between=between), whole)
    assert torch.equal(trained(run_exchanges, 3, plan, make_model, replaced_within), whole)


def test_hooks_of_the_user_come_before_the_exchange(
    run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    """They are registered after the method was made, and one of them puts another tensor in place."""

    def clip(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.clamp(-0.01, 0.01)

    def between(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        for parameter in model.parameters():
            if not parameter._post_accumulate_grad_hooks:
                parameter.register_post_accumulate_grad_hook(clip)  # type: ignore[no-untyped-call]

    whole = trained(run_exchanges, 3, STAR, make_model, between=between)
    cut = trained(run_exchanges, 3, replace(STAR, bucket_nbytes=4), make_model, between=between)
    assert torch.equal(cut, whole)
    assert not torch.equal(whole, trained(run_exchanges, 3, STAR, make_model))


def test_gradients_of_smaller_batches_may_accumulate(
    run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    def accumulated(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        for piece in range(2):
            torch.autograd.backward(mean_square(model, step + 10 * (1 + piece), rank))
        return mean_square(model, step, rank)

    whole = trained(run_exchanges, 3, STAR, make_model, accumulated)
    assert torch.equal(
        trained(run_exchanges, 3, replace(STAR, bucket_nbytes=64), make_model, accumulated), whole
    )


def test_a_sparse_gradient_is_exchanged_densely(run_exchanges: Ranks) -> None:
    make = copies_of(lambda: nn.Sequential(nn.Embedding(6, 5, sparse=True), nn.Linear(5, 1)))

    def of_indices(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        model.zero_grad()
        return model(torch.tensor([step, rank])).square().mean()  # type: ignore[no-any-return]

    whole = trained(run_exchanges, 3, STAR, make, of_indices)
    assert torch.equal(trained(run_exchanges, 3, replace(STAR, bucket_nbytes=4), make, of_indices), whole)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_compute_their_part_of_backward_when_they_like(
    use_reentrant: bool, run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    def checkpointed(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        assert isinstance(model, nn.Sequential)
        middle = checkpoint(model[:2], batch(step, rank).requires_grad_(), use_reentrant=use_reentrant)
        return model[2](middle).square().mean()  # type: ignore[no-any-return]

    whole = trained(run_exchanges, 2, STAR, make_model, checkpointed)
    assert torch.equal(whole, trained(run_exchanges, 2, STAR, make_model))
    assert torch.equal(
        trained(run_exchanges, 2, replace(STAR, bucket_nbytes=4), make_model, checkpointed), whole
    )


def in_pieces(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Compute the shared weight's gradient in two pieces."""
    assert isinstance(model, Tied)
    inner = checkpoint(model.first, batch(step, rank).requires_grad_(), use_reentrant=True)
    outer: torch.Tensor = checkpoint(model.last, model.middle(inner), use_reentrant=True)
    return outer.sum()


def test_a_gradient_that_comes_in_two_pieces_goes_out_once_both_are_there(run_exchanges: Ranks) -> None:
    make = copies_of(Tied)
    whole = trained(run_exchanges, 3, STAR, make, in_pieces)
    assert torch.equal(trained(run_exchanges, 3, replace(STAR, bucket_nbytes=4), make, in_pieces), whole)


def test_a_gradient_that_comes_in_more_pieces_than_before_is_refused_on_every_rank(
    run_exchanges: Ranks,
) -> None:
    def body(exchange: Exchange) -> tuple[str, bool]:
        model, rank = Tied(), exchange.link.rank
        method = DSync(
            model, torch.optim.SGD(model.parameters(), **MOMENTUM), exchange.plan, group=exchange.link
        )
        method.step(lambda: mean_square(model, 0, rank))
        before = weights(model)
        with pytest.raises(TensorError) as caught, method:
            method.step(lambda: in_pieces(model, 0, rank))
        return str(caught.value), torch.equal(weights(model), before)

    for said, untouched in run_exchanges(2, body, Plan(bucket_nbytes=4)):
        assert said.startswith("parameter 0, of shape (5, 5): another gradient arrived while its bucket was")
        assert "use_reentrant=True" in said
        assert untouched


def test_hooks_are_there_during_backward_only(
    run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        with DSync(
            model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link
        ) as method:
            method.step(lambda: mean_square(model, 0, 0))
            assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())

    run_exchanges(1, body, Plan(bucket_nbytes=64))


def test_one_bucket_needs_no_thread(run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]) -> None:
    def body(exchange: Exchange) -> int:
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with DSync(model, sgd, exchange.plan, group=exchange.link) as method:
            method.step(lambda: mean_square(model, 0, 0))
            return sum(thread.name.startswith("gradwire communication") for thread in threading.enumerate())

    assert run_exchanges(1, body, Plan(bucket_nbytes=1 << 20)) == [0]
    assert run_exchanges(1, body, Plan(bucket_nbytes=64)) == [1]


@pytest.mark.parametrize("pipeline", [1, 2])
def test_the_record_counts_all_buckets(
    pipeline: int, run_exchanges: Ranks, make_model: Callable[[], nn.Sequential]
) -> None:
    def body(exchange: Exchange) -> tuple[StepRecord, int]:
        model, rank, seen = make_model(), exchange.link.rank, Seen(exchange)
        method = made(model, torch.optim.SGD(model.parameters(), lr=0.1), seen)
        method.synchronise()
        record = method.step(lambda: mean_square(model, 0, rank)) + method.drain()
        method.close()
        return record, len(seen.counts)

    for record, buckets in run_exchanges(2, body, Plan(bucket_nbytes=4 * 16, pipeline=pipeline)):
        assert buckets == 3  # 2 + 14, 7, 35 of the model's 58 parameters
        assert abs(record.cost.raw_nbytes - 4 * 58) <= 4 * buckets  # a ring of 2 sends every float once
        assert record.cost.wire_nbytes == record.cost.raw_nbytes + 32 * 2 * buckets
        assert record.steps == 1
        assert 0 < record.wait_s < record.step_s
        assert record.cost.total_s > 0
