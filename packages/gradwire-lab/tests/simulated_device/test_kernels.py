"""Kernels of a simulated device take effect late, in order, and on its own memory only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from gradwire.devices import Staged, device_of, on_host
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated


def on(device: Simulated, *values: float) -> torch.Tensor:
    return device.own(torch.tensor(values, dtype=torch.float32))


def test_a_kernel_takes_effect_when_somebody_waits(device: Simulated) -> None:
    tensor = on(device, 1, 2)
    tensor.mul_(3)
    assert tensor.isnan().sum().item() == 0, "a kernel of the same stream sees it"
    tensor.mul_(2)
    assert bool(torch.tensor(tensor.tolist()).isnan().all()), "the host does not"
    device.synchronize()
    assert tensor.tolist() == [6, 12]


def test_results_of_kernels_are_the_devices_and_late_too(device: Simulated) -> None:
    tensor = on(device, 1, 2)
    result = tensor + 1
    assert device_of(result) is device
    assert bool(torch.tensor(result.tolist()).isnan().all())
    assert result.sum().item() == 5, "a number is waited for"
    assert result.tolist() == [2, 3]
    assert (tensor * 2).to("cpu", copy=True).tolist() == [2, 4]


def test_memory_of_host_and_device_do_not_mix(device: Simulated) -> None:
    tensor, host = on(device, 1, 2), torch.ones(2)
    with pytest.raises(
        RuntimeError, match=r"add: expected all tensors on one device, got a tensor of shape \(2,\)"
    ):
        tensor + host
    tensor.copy_(host)
    tensor += torch.tensor(1.0)  # a number
    assert on_host(tensor).tolist() == [2, 2]


def test_a_kernel_does_not_hold_up_what_an_earlier_one_has_written_beside(device: Simulated) -> None:
    """As a bucket's copy begins while backward computes the next one, in memory that a kernel zeroed."""
    tensor = on(device, 1, 2, 3, 4)
    tensor.mul_(2)
    staged = Staged(tensor[1:3])
    tensor[:1].add_(1)
    tensor[3:].add_(1)
    assert staged.floats().tolist() == [4, 6]
    assert bool(torch.tensor(tensor.tolist())[[0, 3]].isnan().all()), "the later kernels did not run for it"
    assert tensor.sum().item() == 3 + 4 + 6 + 9


@pytest.mark.parametrize("kind", [partial(torch.optim.SGD, lr=0.1), torch.optim.AdamW])
def test_a_model_trains_on_it_as_on_the_cpu(kind: Callable[..., torch.optim.Optimizer]) -> None:
    def trained(device: Simulated | None) -> torch.Tensor:
        torch.manual_seed(1)
        model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(8, 3)
        optimizer = kind(model.parameters())
        for _ in range(4):
            if device is not None:
                with Kernels(device):
                    step(device.adopt(model), device.own(x), optimizer)
            else:
                step(model, x, optimizer)
        if device is not None:
            device.synchronize()
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    def step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    assert torch.equal(trained(Simulated()), trained(None))
