"""Each place that waits for a device needs its wait, however lucky a whole training step may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradwire.devices import on_host
from gradwire.sync.flat.gradients import FlatGradients, FlatWeights
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated

Seam = Callable[[Simulated], Callable[[], torch.Tensor]]
"""Prepares something, and returns what is then done."""


def model_on(device: Simulated) -> nn.Linear:
    model = nn.Linear(2, 1, bias=False).requires_grad_()
    nn.init.ones_(model.weight)
    device.adopt(model)
    return model


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return what the device's next kernel finds."""
    return (tensor.detach() * 1).to("cpu", copy=True)


def weights_go_out(device: Simulated) -> Callable[[], torch.Tensor]:
    model = model_on(device)
    model.weight.data.mul_(3)
    return lambda: FlatWeights(model.parameters()).gather().clone()


def weights_come_in(device: Simulated) -> Callable[[], torch.Tensor]:
    model = model_on(device)
    weights = FlatWeights(model.parameters())
    weights.scatter()

    def again() -> torch.Tensor:
        weights.buffer.fill_(3)
        weights.scatter()  # the memory on the device is still read
        return to_host(model.weight)

    return again


def a_gradient_is_put(device: Simulated) -> Callable[[], torch.Tensor]:
    gradients = FlatGradients(model_on(device).parameters())
    gradients.flat.add_(1)

    def put() -> torch.Tensor:
        gradients.buffer.fill_(5)
        gradients.put()
        return to_host(gradients.flat)

    return put


def a_gradient_is_given_up(device: Simulated) -> Callable[[], torch.Tensor]:
    gradients = FlatGradients(model_on(device).parameters())
    staged = gradients.staged()
    staged.floats().fill_(5)
    staged.store()

    def begin_anew() -> torch.Tensor:
        gradients.zero()  # nobody has taken the average
        return to_host(gradients.flat.add_(1))

    return begin_anew


def a_tensor_is_read(device: Simulated) -> Callable[[], torch.Tensor]:
    tensor = device.own(torch.ones(2)).mul_(2)
    return lambda: on_host(tensor).clone()


SEAMS: dict[Seam, list[float]] = {
    weights_go_out: [3, 3],
    weights_come_in: [3, 3],
    a_gradient_is_put: [5, 5],
    a_gradient_is_given_up: [1, 1],
    a_tensor_is_read: [2, 2],
}


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.__name__)
def test_it_needs_each_of_its_waits(seam: Seam) -> None:
    def found(device: Simulated, without: tuple[str, int] | None = None) -> list[float]:
        with Kernels(device):
            act = seam(device)
            device.waits.clear()
            device.without = without
            result: list[float] = act().flatten().tolist()
        return result

    device = Simulated()
    assert found(device) == SEAMS[seam]
    assert device.waits
    for kind, count in device.waits.items():
        for number in range(count):
            assert found(Simulated(), (kind, number)) != SEAMS[seam], f"{kind} {number} is needless"
