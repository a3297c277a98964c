"""Updates that are tried and taken back: what they make of the weights, and what they leave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.pipe.correction import VirtualWeights
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


class _Wrapped(torch.optim.Optimizer):
    """Forwards to another optimizer, as those of frameworks do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: object = None) -> None:  # type: ignore[override] # noqa: ARG002
        self.optimizer.step()


def test_an_optimizer_that_wraps_another_is_refused(run_exchanges: Ranks, make_model: MakeModel) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        wrapped = _Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(SpecError, match=r"got a _Wrapped that wraps another one; .* correction=\"none\""):
            pipe_sgd(model, wrapped, exchange)
        pipe_sgd(model, wrapped, exchange, correction="none").close()

    run_exchanges(1, body)


class _InAttributes(torch.optim.Optimizer):
    """Momentum whose state is in attributes that every step changes in place."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.velocity = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]
        self.steps = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override] # noqa: ARG002
        self.steps += 1
        for parameter, velocity in zip(self.param_groups[0]["params"], self.velocity, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(0.1 * velocity)


def test_attributes_that_are_changed_in_place_are_taken_back(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, float]:
        model, rank = make_model(), exchange.link.rank
        optimizer = _InAttributes(model.parameters())
        with pipe_sgd(model, optimizer, exchange) as method:
            for t in range(8):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model), float(optimizer.steps)

    def plain(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with pipe_sgd(model, optimizer, exchange) as method:
            for t in range(8):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    wanted = run_exchanges(2, plain)[0]
    for weights, steps in run_exchanges(2, body):
        assert steps == 8
        torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-7)


def test_a_parameter_that_gets_other_memory_on_the_way_is_told(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = nn.Linear(3, 1)

        def compute() -> torch.Tensor:
            loss = model(torch.ones(2, 3)).square().mean()
            model.weight.data = model.weight.data.clone()
            return loss  # type: ignore[no-any-return]

        method = pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange)
        method.step(lambda: model(torch.ones(2, 3)).square().mean())
        with pytest.raises(StateError, match="got a changed one"):
            method.step(compute)
        method.close()

    run_exchanges(1, body)


class _Counting(torch.optim.SGD):
    """Counts its steps in its state, which has no parameter for it."""

    def step(self, closure: Any = None) -> Any:
        state: dict[Any, Any] = self.state
        state["steps"] = state.get("steps", 0) + 1
        state.setdefault("in place", torch.zeros(())).add_(1)
        return super().step(closure)


MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "counting": lambda p: _Counting(p, lr=0.1, momentum=0.9),
}


def _with_gradients(model: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("updates", [0, 1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_weights_go_ahead_as_those_of_a_copy_and_come_back(
    name: str, updates: int, make_model: MakeModel
) -> None:
    def several(step: Callable[[], object]) -> None:
        for _ in range(updates):
            step()

    model = _with_gradients(make_model(), 3)
    optimizer = MAKERS[name](model.parameters())
    optimizer.step()  # so that it has a state
    virtual = VirtualWeights(list(model.parameters()), optimizer)
    for _ in range(2):  # the second time the memory of the first is used
        ahead, its_optimizer = copy.deepcopy((model, optimizer))
        for ours, its in zip(model.parameters(), ahead.parameters(), strict=True):
            its.grad = ours.grad  # which deepcopy leaves behind
        several(its_optimizer.step)
        before, kept = _flat(model), repr(optimizer.state_dict())
        addresses = [parameter.data_ptr() for parameter in model.parameters()]
        with virtual.ahead(several):
            assert torch.equal(_flat(model), _flat(ahead))
        assert torch.equal(_flat(model), before)
        assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
        assert repr(optimizer.state_dict()) == kept
        optimizer.step()


def test_a_block_that_writes_a_parameter_is_told_and_what_it_wrote_is_lost(make_model: MakeModel) -> None:
    model = _with_gradients(make_model(), 3)
    virtual = VirtualWeights(list(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1))
    before = _flat(model)

    def once(step: Callable[[], object]) -> None:
        step()

    def write_ahead() -> None:
        with virtual.ahead(once), torch.no_grad():
            next(model.parameters()).zero_()

    with pytest.raises(StateError) as caught:
        write_ahead()
    assert str(caught.value) == (
        "an eager pipeline: expected unchanged parameters after the forward and backward passes, got a "
        'changed one; use correction="none", or change parameters only between steps'
    )
    assert torch.equal(_flat(model), before)
