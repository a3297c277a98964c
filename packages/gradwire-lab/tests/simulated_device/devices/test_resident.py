"""Tensors that stay on their device: float32 is their own memory, or a copy beside them."""

from __future__ import annotations

import pytest
import torch

from gradwire.devices import Staged, Staging, device_of
from gradwire.devices.staging import ResidentStream
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated


def double(device: Simulated, floats: torch.Tensor) -> None:
    device.launch(lambda: floats.mul_(2), [floats], [floats])


def test_contiguous_float32_is_exchanged_in_place_and_the_host_waits_for_nothing() -> None:
    device = Simulated()
    tensor = device.own(torch.ones(4))
    staged = Staged(tensor, staging=Staging(on_device=True))
    with staged.stream.current:
        double(device, staged.floats())
        event = device.event()
    staged.store().order()
    assert (staged.crossing_nbytes, dict(device.waits)) == (0, {"follow": 1})
    assert bool(tensor.isnan().all()), "nobody has waited"
    event.wait()
    assert tensor.tolist() == [2.0] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_tensors_are_converted_there_and_back(dtype: torch.dtype) -> None:
    device = Simulated()
    with Kernels(device):
        tensor = device.own(torch.arange(6).to(dtype).view(2, 3)).mul_(1).t()
        staged = Staged(tensor, staging=Staging(on_device=True))
        with staged.stream.current:
            floats = staged.floats()
            assert (floats.dtype, device_of(floats)) == (torch.float32, device)
            double(device, floats)
        staged.store().order()
        assert (tensor * 1).to("cpu", copy=True).tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]


@pytest.mark.parametrize("without", [("follow", 0), ("order", 0)])
def test_both_of_its_waits_are_needed(without: tuple[str, int]) -> None:
    device = Simulated(without=without)
    with Kernels(device):
        tensor = device.own(torch.ones(3, dtype=torch.float16)).mul_(3)
        staged = Staged(tensor, staging=Staging(on_device=True))
        with staged.stream.current:
            double(device, staged.floats())
        staged.store().order()
        assert (tensor * 1).to("cpu", copy=True).tolist() != [6.0] * 3


def test_a_future_is_complete_when_the_stream_has_come_there() -> None:
    device = Simulated()
    tensor, future = device.own(torch.ones(2)), device.future()
    stream = ResidentStream(device)
    with stream.current:
        double(device, tensor)
    stream.complete(future, tensor)
    assert future.wait().tolist() == [2.0, 2.0]


def test_on_the_cpu_it_makes_no_difference() -> None:
    halves = torch.ones(3, dtype=torch.float16)
    staged = Staged(halves, staging=Staging(on_device=True))
    staged.floats().mul_(2)
    staged.store().order()
    assert (halves.tolist(), staged.crossing_nbytes) == ([2.0] * 3, 0)
