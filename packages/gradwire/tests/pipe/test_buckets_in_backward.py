"""A pipeline whose buckets leave during backward: the bits of one whose buckets leave after it."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from gradwire.codecs import parse
from gradwire.errors import TensorError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat.backward import BackwardOverlap
from gradwire.sync.flat.buckets import FlatBuckets
from support.in_backward import batch, copies_of, mean_square, met_by, weights
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
Loss = Callable[[nn.Module, int, int], torch.Tensor]
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.0625, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}
STEPS = 7
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def trained(
    run_exchanges: Ranks,
    world: int,
    plan: Plan,
    make: Callable[[], nn.Module],
    loss: Loss = mean_square,
    optimizer: str = "momentum",
    between: Callable[[nn.Module, int], None] = lambda _model, _step: None,
    **options: Any,
) -> torch.Tensor:
    """Return the weights after each step and after the drain, one row each, the same on all ranks."""

    def body(exchange: Exchange) -> torch.Tensor:
        model, rank, rows = make(), exchange.link.rank, []
        made = OPTIMIZERS[optimizer](model.parameters())
        with pipe_sgd(model, made, exchange, plan.pipeline, **options) as method:
            for step in range(STEPS):
                between(model, step)
                method.step(partial(loss, model, step, rank))
                rows.append(weights(model))
        return torch.stack([*rows, weights(model)])

    first, *others = run_exchanges(world, body, plan)
    assert all(torch.equal(other, first) for other in others)
    return first  # type: ignore[no-any-return]


def after_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every bucket after backward, as a first pass does."""
    monkeypatch.setattr(BackwardOverlap, "_learn", lambda _self: None)


def in_turn(
    model: nn.Module, make_optimizer: Callable[[Any], Optimizer], loss: Loss, plan: Plan, correction: str
) -> torch.Tensor:
    """Do the steps of two ranks in one process, one after the other: Pipe-SGD without any exchange.

    With eager updates, a rank computes at a copy of model and optimizer that its local gradients have
    updated.
    """
    optimizer, rows = make_optimizer(model.parameters()), list[torch.Tensor]()
    under_way = deque[list[list[torch.Tensor]]]()

    def update(model: nn.Module, optimizer: Optimizer, gradients: list[torch.Tensor]) -> None:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()

    def apply_oldest() -> None:
        one, other = under_way.popleft()
        update(model, optimizer, [(a + b) / 2 for a, b in zip(one, other, strict=True)])

    for step in range(STEPS):
        while len(under_way) > plan.pipeline - 1:
            apply_oldest()
        local = []
        for rank in range(2):
            own, own_optimizer = copy.deepcopy((model, optimizer))
            for gradients in under_way if correction == "eager" else ():
                update(own, own_optimizer, gradients[rank])
            local.append(list(torch.autograd.grad(loss(own, step, rank), list(own.parameters()))))
        under_way.append(local)
        rows.append(weights(model))
    while under_way:
        apply_oldest()
    return torch.stack([*rows, weights(model)])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("correction", ["none", "eager"])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 4])
def test_is_pipe_sgd_done_in_turn_bit_for_bit(
    optimizer: str, correction: str, pipeline: int, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    plan = Plan(pipeline=pipeline, bucket_nbytes=64)
    wanted = in_turn(make_model(), OPTIMIZERS[optimizer], mean_square, plan, correction)
    found = trained(run_exchanges, 2, plan, make_model, optimizer=optimizer, correction=correction)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("spec", ["fp8", "quantize:8", "topk:0.25", "terngrad"])
@pytest.mark.parametrize(("correction", "pipeline"), [("none", 2), ("eager", 2), ("eager", 3)])
def test_the_bits_are_those_of_buckets_that_leave_after_backward(
    spec: str,
    correction: str,
    pipeline: int,
    run_exchanges: Ranks,
    make_model: MakeModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(parse(spec), pipeline=pipeline, bucket_nbytes=64)
    options: dict[str, Any] = {"correction": correction, "warmup_steps": 2, "max_norm": 0.5}
    found = trained(run_exchanges, 3, plan, make_model, **options)
    after_backward(monkeypatch)
    assert torch.equal(found, trained(run_exchanges, 3, plan, make_model, **options))


class Tied(nn.Module):
    """A model whose first and last layer share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x).tanh()).tanh())  # type: ignore[no-any-return]


def in_pieces(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Compute the shared weight's gradient in two pieces, of which each is a backward pass of its own."""
    assert isinstance(model, Tied)
    inner = checkpoint(model.first, batch(step, rank).requires_grad_(), use_reentrant=True)
    return checkpoint(model.last, model.middle(inner), use_reentrant=True).square().mean()  # type: ignore[no-any-return]


def accumulated(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Accumulate three batches."""
    for piece in range(2):
        torch.autograd.backward(mean_square(model, step + 10 * (1 + piece), rank))
    return mean_square(model, step, rank)


def replaced(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Set all gradients to None first."""
    model.zero_grad(set_to_none=True)
    return mean_square(model, step, rank)


def scaled_at_the_end(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Halve a gradient in place when backward ends."""
    (parameter, *_, last) = model.parameters()

    def halve() -> None:
        assert parameter.grad is not None
        assert last.grad is not None
        last.grad.mul_(0.5)
        parameter.grad = parameter.grad * 0.5

    loss = mean_square(model, step, rank)
    loss.register_hook(lambda _: Variable._execution_engine.queue_callback(halve))  # type: ignore[no-untyped-call]
    return loss


def some(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """Use a layer that no other rank uses, one that no rank uses in every step, and another one."""
    layers = list(model.children())
    return torch.stack([layers[i](batch(step, rank)).square().mean() for i in {rank, step % 3}]).sum()


def four_layers() -> nn.Module:
    return nn.ModuleList(nn.Linear(5, 3) for _ in range(4))


def three_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


CASES: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "a parameter used twice": (Tied, mean_square),
    "gradients in pieces": (Tied, in_pieces),
    "several backward passes": (three_layers, accumulated),
    "replaced gradients": (three_layers, replaced),
    "gradients changed when backward ends": (three_layers, scaled_at_the_end),
    "parameters that some ranks use": (four_layers, some),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("correction", "pipeline"), [("none", 1), ("none", 2), ("eager", 2), ("eager", 4)])
def test_whatever_backward_does_the_bits_are_those_of_one_bucket(
    case: str, correction: str, pipeline: int, run_exchanges: Ranks
) -> None:
    """A star adds in the order of the ranks, wherever the buckets' borders are."""
    make, loss = copies_of(CASES[case][0]), CASES[case][1]
    whole, cut = (
        trained(
            run_exchanges,
            3,
            Plan(algorithm="star", pipeline=pipeline, bucket_nbytes=bucket_nbytes),
            make,
            loss,
            correction=correction,
        )
        for bucket_nbytes in (None, 4)
    )
    assert torch.equal(whole, cut)
    assert not torch.equal(whole[0], whole[-1])


@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_parameters_may_be_frozen_and_unfrozen(
    pipeline: int, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def change(model: nn.Module, step: int) -> None:
        model.get_parameter("2.weight").requires_grad_(step not in (2, 3))
        model.get_parameter("0.bias").requires_grad_(step > 4)

    plans = [Plan(algorithm="star", pipeline=pipeline, bucket_nbytes=nbytes) for nbytes in (None, 4)]
    whole, cut = (trained(run_exchanges, 3, plan, make_model, between=change) for plan in plans)
    assert torch.equal(whole, cut)


@pytest.mark.parametrize("correction", ["none", "eager"])
@pytest.mark.parametrize("pipeline", [2, 3])
def test_a_bucket_leaves_in_backward_while_averages_of_the_step_before_arrive(
    pipeline: int, correction: str, run_exchanges: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last average of a step arrives only when backward of the next step is at the first layer."""
    started = dict[FlatBuckets, list[int]]()
    plain_start = FlatBuckets.start

    def start(self: FlatBuckets, gradients: Any, number: int, observer: Any) -> Any:
        started.setdefault(self, []).append(number)
        return plain_start(self, gradients, number, observer)

    monkeypatch.setattr(FlatBuckets, "start", start)

    def body(exchange: Exchange) -> list[tuple[int, bool]]:
        model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = pipe_sgd(model, optimizer, exchange, pipeline, correction=correction)
        gates, seen, ran = [Event() for _ in range(STEPS + 1)], list[tuple[int, bool]](), list[int]()
        run = method.exchange.run

        def held_run(*given: Any) -> Any:
            step, number = divmod(len(ran), 2)
            ran.append(number)
            if number == 1:  # until the next step is in backward
                assert gates[step + 1].wait(20)
            return run(*given)

        method.exchange.run = held_run  # type: ignore[method-assign,assignment]

        def at_the_first_layer(step: int) -> None:
            mine = started.get(method._under_way._overlap._buckets, [])
            seen.append((len(mine) - 2 * step, len(ran) < 2 * step + 1))
            gates[step].set()

        def loss(step: int) -> torch.Tensor:
            first: torch.Tensor = model[0](batch(step, 0))
            middle = met_by(first, lambda: at_the_first_layer(step))
            return model[1](middle).square().mean()  # type: ignore[no-any-return]

        with method:
            for step in range(STEPS):
                method.step(partial(loss, step))
            gates[STEPS].set()
        return seen

    for seen in run_exchanges(2, body, Plan(bucket_nbytes=4 * 30)):
        assert seen[0] == (0, True), "the first pass counts gradients"
        assert seen[1:] == [(1, True)] * (STEPS - 1), "one bucket has left, behind averages that arrive"


def test_ranks_whose_gradients_are_ready_in_different_orders_exchange_in_one(run_exchanges: Ranks) -> None:
    """Rank 1 computes the layers the other way round."""

    def body(exchange: Exchange) -> tuple[list[int], torch.Tensor]:
        layers, counts = [nn.Linear(n, 1, bias=False) for n in (2, 3, 4)], list[int]()
        model = nn.ModuleList(layers)
        if exchange.link.rank == 1:
            layers.reverse()

        def compute_loss() -> torch.Tensor:
            total = torch.zeros(1)
            for layer in layers:  # a chain: backward takes the layers in the reverse order
                total = layer(torch.ones(layer.in_features)) * (1 + 0.01 * total)
            return total.sum()

        with pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange) as method:
            run = method.exchange.run

            def counted(values: torch.Tensor, request: Any) -> Any:
                counts.append(values.numel())
                return run(values, request)

            method.exchange.run = counted  # type: ignore[method-assign,assignment]
            for _ in range(3):
                method.step(compute_loss)
        return counts, weights(model)

    (counts, first), (others, second) = run_exchanges(2, body, Plan(bucket_nbytes=4))
    assert counts == others == [4, 3, 2] * 3
    assert torch.equal(first, second)


@pytest.mark.parametrize("spec", ["identity", "topk:0.25"])
@pytest.mark.parametrize("correction", ["none", "eager"])
@pytest.mark.parametrize("pipeline", [2, 3])
def test_a_run_resumes_from_gradients_in_flight_bit_for_bit(
    spec: str, correction: str, pipeline: int, run_exchanges: Ranks, make_model: MakeModel
) -> None:
    plan = Plan(parse(spec), pipeline=pipeline, bucket_nbytes=64)

    def train(exchange: Exchange, steps: range, states: Any = None) -> Any:
        model, rank = make_model(), exchange.link.rank
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        with pipe_sgd(model, optimizer, exchange, pipeline, correction=correction) as method:
            if states is not None:
                for each, state in zip((method, model, optimizer), states[rank], strict=True):
                    each.load_state_dict(state)  # type: ignore[attr-defined]
            for step in steps:
                method.step(partial(mean_square, model, step, rank))
            state = method.state_dict()
            saved = copy.deepcopy((state, model.state_dict(), optimizer.state_dict()))
        return saved, weights(model)

    straight = run_exchanges(2, lambda exchange: train(exchange, range(STEPS)), plan)
    saved = run_exchanges(2, lambda exchange: train(exchange, range(4)), plan)
    states = [state for state, _ in saved]
    resumed = run_exchanges(2, lambda exchange: train(exchange, range(4, STEPS), states), plan)
    assert torch.equal(resumed[0][1], straight[0][1])
    assert torch.equal(resumed[1][1], straight[0][1])


def test_more_gradients_than_before_are_refused_once_their_bucket_has_left(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> str:
        model, rank = Tied(), exchange.link.rank
        method = pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange)
        for step in range(2):
            method.step(partial(mean_square, model, step, rank))
        with pytest.raises(TensorError) as caught, method:
            method.step(lambda: in_pieces(model, 2, rank))
        return str(caught.value)

    for said in run_exchanges(2, body, Plan(bucket_nbytes=4)):
        assert said.startswith("parameter 0, of shape (5, 5): another gradient arrived while its bucket was")
        assert "use one bucket" in said
