from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.errors import DeviceError, SpecError
from gradwire.offload.replicas import replicas_of
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
    assert arrived == ["begin", "first", "second", "third"]
    arrived.clear()
    replica.module(torch.ones(1, 2))
    assert arrived == ["begin", "second", "third", "first"]
    assert [each.name for each in replica.order] == ["second", "third", "first"]
    assert len(hooks) == 5


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
