"""Masters that are written between two forward passes: the device has what a fresh send of them gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.offload.awp import AWP
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.policies import Oracle, Policy

POLICIES: dict[str, Callable[[], Policy | str]] = {
    **{name: partial(str, name) for name in ("static:8", "static:16", "static:24", "static:32")},
    **{name: partial(str, name) for name in ("delta", "delta:fp32")},
    "oracle": lambda: Oracle({16: [(1.0, 0.5)]}, accuracy=0.5),
    "awp": lambda: AWP(threshold=1.0, interval=2),
}
EXACT = ("static:32", "delta:fp32")
X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randn(8, 2, generator=torch.Generator().manual_seed(2))

Forward = Callable[[], torch.Tensor]
"""Computes the loss."""

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def make_model(frozen: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 2))
        model.get_parameter("0.weight").requires_grad_(not frozen)
        return model


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


class Sam(torch.optim.SGD):
    """Sharpness-aware minimisation, as its usual implementation writes weights: in place, and by ``data``."""

    @torch.no_grad()
    def first_step(self) -> None:
        for each in self.param_groups[0]["params"]:
            self.state[each]["old"] = each.data.clone()
            each.add_(each.grad, alpha=0.1)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for each in self.param_groups[0]["params"]:
            each.data = self.state[each].pop("old")
        self.step()
        self.zero_grad()


def lbfgs(_: nn.Module, optimizer: torch.optim.Optimizer, forward: Forward) -> None:
    def closure() -> float:
        optimizer.zero_grad()
        loss = forward()
        backward(loss)
        return loss.item()

    for _turn in range(3):
        optimizer.step(closure)
    forward()


def sam(_: nn.Module, optimizer: Any, forward: Forward) -> None:
    for _turn in range(3):
        backward(forward())
        optimizer.first_step()
        backward(forward())
        optimizer.second_step()
    forward()


def moving_average(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    forward: Forward,
    write: Callable[[torch.Tensor, torch.Tensor], Any],
) -> None:
    average = copy.deepcopy(model)
    for _ in range(3):
        optimizer.zero_grad()
        backward(forward())
        optimizer.step()
        own: list[torch.Tensor] = [*model.parameters()]
        other: list[torch.Tensor] = [*average.parameters()]
        with torch.no_grad():
            torch._foreach_lerp_(other, own, 0.1)
            kept = [each.clone() for each in own]
            for some in (other, kept):
                for each, value in zip(own, some, strict=True):
                    write(each, value)
                forward()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, forward: Forward) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        backward(forward())
        optimizer.step()
        with torch.no_grad():
            model.get_parameter("3.weight").clamp_(-0.05, 0.05)
        forward()


def frozen_and_buffers(model: nn.Module, optimizer: torch.optim.Optimizer, forward: Forward) -> None:
    weight, mean = model.get_parameter("0.weight"), model.get_buffer("2.running_mean")
    model.eval()
    for number in range(3):
        optimizer.zero_grad()
        backward(forward())
        with torch.no_grad():
            weight.add_(0.1)
            mean.add_(number)
        optimizer.step()
        forward()


def assign(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.data = value.clone()


WRITERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], Callable[..., None]]] = {
    "lbfgs": (partial(torch.optim.LBFGS, lr=0.5, max_iter=4), lbfgs),
    "sam": (partial(Sam, lr=0.1, momentum=0.9), sam),
    **{
        f"average, {name}": (partial(torch.optim.AdamW, lr=0.01), partial(moving_average, write=write))
        for name, write in {
            "in place": lambda each, value: each.copy_(value),
            "data": assign,
            "data in place": lambda each, value: each.data.copy_(value),
        }.items()
    },
    "clipped": (partial(torch.optim.SGD, lr=0.1), clipped),
    "frozen": (partial(torch.optim.SGD, lr=0.1), frozen_and_buffers),
}


def plain(writer: str) -> tuple[list[float], list[torch.Tensor]]:
    model, losses = make_model(writer == "frozen"), list[float]()
    make, run = WRITERS[writer]

    def forward() -> torch.Tensor:
        loss = nn.functional.mse_loss(model(X), Y)
        losses.append(loss.item())
        return loss

    run(model, make(model.parameters()), forward)
    return losses, [each.detach() for each in model.parameters()]


def sent(offload: HostOffload, policy: str) -> list[torch.Tensor]:
    """Return what the device has of the masters if it has all that they are now."""
    bits = iter(offload.state_dict()["bits"])
    found = []
    for master in offload.model.parameters():
        each = master.detach()
        if each.dim() > 1:
            kept = next(bits)
            each = each.bfloat16().float() if policy == "delta" else each.view(torch.int32) & -1 << 32 - kept
        found.append(each.view(torch.float32).clone())
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_was_written_is_on_the_device_at_the_next_forward_pass(writer: str, policy: str) -> None:
    model, losses = make_model(writer == "frozen"), list[float]()
    make, run = WRITERS[writer]
    optimizer = make(model.parameters())
    offload = HostOffload(model, optimizer, POLICIES[policy](), device="cpu")

    def forward() -> torch.Tensor:
        offload.train(model.training)
        loss = nn.functional.mse_loss(offload(X), Y)
        losses.append(loss.item())
        for each, wanted in zip(offload.replica.parameters(), sent(offload, policy), strict=True):
            assert torch.equal(each, wanted)
        return loss

    run(model, optimizer, forward)
    offload.close()
    if policy in EXACT:
        wanted, weights = plain(writer)
        assert losses == wanted
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))


@pytest.mark.parametrize("policy", ["static:16", "delta"])
def test_what_nobody_wrote_is_not_sent_again(policy: str) -> None:
    model = make_model()
    offload = HostOffload(model, torch.optim.SGD(model.parameters(), lr=0.1), policy, device="cpu")
    backward(offload(X).sum())
    offload.optimizer.step()
    offload.wait()
    sends = {name: row.sends for name, row in offload.ledger.layers.items()}
    with torch.no_grad():
        model.get_parameter("3.bias").add_(1)
    for _ in range(2):
        offload(X)
        assert {name: row.sends for name, row in offload.ledger.layers.items()} == sends | {"3": 3}
    offload.close()


def test_parameters_that_were_replaced_are_refused() -> None:
    model = make_model()
    offload = HostOffload(model, torch.optim.SGD(model.parameters(), lr=0.1), "delta", device="cpu")
    state = {name: each + 1 for name, each in model.state_dict().items()}
    model.load_state_dict(state)
    with pytest.raises(SpecError, match="got 6 new parameters; use load_state_dict without ass"):
        model.load_state_dict(state, assign=True)
    offload.close()
