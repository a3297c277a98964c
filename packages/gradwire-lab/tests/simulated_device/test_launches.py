"""Kernels that are none of torch's: what they write is poison until somebody waits."""

from __future__ import annotations

import pytest
import torch

from gradwire.devices import CPU, Device, on_host
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated


def doubled(device: Device, x: torch.Tensor, out: torch.Tensor) -> None:
    device.launch(lambda: torch.mul(x, 2, out=out), [x], [out])


def test_what_is_written_is_poison_until_an_event_after_it() -> None:
    device = Simulated()
    x, out, pinned = device.own(torch.ones(3)), device.zeros(3), device.pinned(3)
    doubled(device, x, out)
    doubled(device, out, pinned)
    event = device.event()
    assert bool(pinned.isnan().all())
    event.wait()
    assert pinned.tolist() == [4.0] * 3
    assert on_host(out).tolist() == [2.0] * 3


def test_a_wait_that_is_missing_is_found() -> None:
    device = Simulated(without=("wait", 0))
    pinned = device.pinned(2)
    doubled(device, device.own(torch.ones(2)), pinned)
    device.event().wait()
    assert bool(pinned.isnan().all())


def test_it_sees_what_torch_s_kernels_wrote_before_and_they_what_it_wrote() -> None:
    device = Simulated()
    with Kernels(device):
        x = device.own(torch.ones(2)) + 1
        out = device.zeros(2)
        doubled(device, x, out)
        assert (out * 3).to("cpu", copy=True).tolist() == [12.0, 12.0]


def test_on_the_cpu_it_has_run() -> None:
    x, out = torch.ones(2), torch.zeros(2)
    doubled(CPU, x, out)
    CPU.event().wait()
    assert out.tolist() == [2.0, 2.0]


def test_a_lost_device_takes_no_more_kernels() -> None:
    device = Simulated()
    x, event = device.own(torch.ones(2)), device.event()
    device.lose()
    for use in (
        lambda: doubled(device, x, x),
        lambda: device.zeros(1),
        lambda: device.pinned(1),
        lambda: device.stream().load(torch.zeros(2), x),
        event.wait,
        event.order,
    ):
        with pytest.raises(RuntimeError, match="the device is lost"):
            use()


def test_the_allocation_that_is_refused_is_that_of_this_name_and_number() -> None:
    device = Simulated(refused=("zeros", 1))
    device.pinned(1)
    device.zeros(1)
    with pytest.raises(torch.OutOfMemoryError):
        device.zeros(1)
    device.zeros(1)
    with pytest.raises(RuntimeError, match="out of memory"):
        Simulated(refused=("pinned", 0)).pinned(1)
