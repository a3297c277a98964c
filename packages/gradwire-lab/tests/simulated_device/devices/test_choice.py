"""Which device a tensor lives on."""

from __future__ import annotations

import torch

from gradwire.devices.base import CPU
from gradwire.devices.staging import Cuda, device_of
from gradwire_lab.simulated_device.simulated import Simulated


def test_memory_of_the_host_is_the_cpus_unless_a_simulated_device_owns_it() -> None:
    first, second = Simulated(), Simulated()
    tensors = [torch.ones(3), first.own(torch.ones(3)), second.own(torch.ones(3))]
    assert [device_of(each) for each in tensors] == [CPU, first, second]
    assert device_of(tensors[1][1:]) is first


def test_another_kind_of_memory_is_an_accelerators_one_for_each() -> None:
    device = device_of(torch.ones(3, device="meta"))
    assert isinstance(device, Cuda)
    assert str(device) == "meta"
    assert device_of(torch.ones(1, device="meta")) is device
