from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.devices import on_host
from gradwire.errors import DeviceError, SpecError
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.replicas import replicas_of
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated


class Late(nn.Module):
    """Reads its second layer's weight without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(2, 2, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.first(self.third(x)), self.second.weight)


def test_the_first_forward_pass_shows_the_order_in_which_layers_are_needed() -> None:
    (replica,) = replicas_of(Late(), "cpu", ())
    arrived = list[str]()
    hooks = [
        *replica.hook(lambda: arrived.append("begin"), lambda some: arrived.extend(x.name for x in some))
    ]
    replica.module(torch.ones(1, 2))
    assert [*dict.fromkeys(arrived)] == ["begin", "first", "second", "third"]
    arrived.clear()
    replica.module(torch.ones(1, 2))
    assert [*dict.fromkeys(arrived)] == ["begin", "second", "third", "first"]
    assert [each.name for each in replica.order] == ["second", "third", "first"]
    arrived.clear()
    copied = copy.deepcopy(replica.module)
    assert isinstance(copied, Late)
    copied.third.weight.sum()
    assert set(arrived) == {"first", "second", "third"}, "a copy has the last weights"
    for each in hooks:
        each.remove()
    arrived.clear()
    replica.module(torch.ones(1, 2))
    assert not arrived


class Read(nn.Module):
    """Reads weights before it calls their layer and, in evaluation, instead of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        penalty = self.layer.weight.square().sum()
        for each in self.layer.parameters():
            penalty = penalty + each.sum()
        y = self.layer(x) if self.training else nn.functional.linear(x, self.layer.weight)
        return y.square().mean() + penalty


def losses_of(call: Any, optimizer: torch.optim.Optimizer, device: Simulated | None) -> list[torch.Tensor]:
    losses = []
    for number in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        x = x if device is None else device.own(x)
        optimizer.zero_grad()
        loss = call.train()(x)
        losses.append(on_host(loss.detach()).clone())
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(on_host(call.eval()(x)).clone())
    return losses


@pytest.mark.parametrize("made", [lambda: None, Simulated], ids=["cpu", "simulated"])
def test_weights_that_are_read_without_a_call_of_their_layer_are_those_of_the_last_step(
    made: Callable[[], Simulated | None],
) -> None:
    model, device = Read(), made()
    plain = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain)]
    with nullcontext() if device is None else Kernels(device):
        offload = HostOffload(model, optimizers[0], "static:32", device=device or "cpu")
        found = losses_of(offload, optimizers[0], device)
        offload.close()
    assert torch.equal(torch.stack(found), torch.stack(losses_of(plain, optimizers[1], None)))


def test_each_device_has_a_replica_without_gradients() -> None:
    model, devices = nn.Linear(2, 2), [Simulated(), Simulated()]
    model.weight.grad = torch.ones(2, 2)
    found = replicas_of(model, devices, ())
    assert [each.device for each in found] == devices
    assert [each.module.weight.grad for each in found] == [None, None]
    assert torch.equal(model.weight.grad, torch.ones(2, 2))


def test_mistakes_are_one_sentence() -> None:
    model, device = nn.Linear(2, 2), Simulated()
    for wrong in ([], [device, device], ["cpu", "cpu"]):
        with pytest.raises(SpecError, match="expected one device, or a list of different devices, got"):
            replicas_of(model, wrong, ())
    with pytest.raises(SpecError, match="cannot be moved to the device 'abacus'"):
        replicas_of(model, ["cpu", "abacus"], ())


def test_a_replica_that_does_not_fit_is_one_sentence() -> None:
    with pytest.raises(DeviceError, match=r"weights of 24 bytes do not fit in .* a simulated device; choose"):
        replicas_of(nn.Linear(2, 2), Simulated(refused=("adopt", 0)), ())
