from __future__ import annotations

import pytest
import torch

from gradwire.errors import DeviceError, TensorError
from gradwire.offload.replicas import DeviceEnd
from gradwire_lab.simulated_device.simulated import Simulated


def test_host_memory_is_the_device_s_unless_it_must_not_be_pinned() -> None:
    device = Simulated(refused=("pinned", 1))
    end = DeviceEnd(device, [])
    assert end.host_memory(3).shape == (3,)
    with pytest.raises(
        DeviceError, match=r"expected 12 bytes of pinned memory .* a simulated device.*pass pin_memory=False"
    ):
        end.host_memory(3)
    assert DeviceEnd(device, [], pinned=False).host_memory(3).shape == (3,)
    assert device.allocations["pinned"] == 2


def test_what_a_device_raises_becomes_one_sentence() -> None:
    end = DeviceEnd(Simulated(), [])
    room = pytest.raises(
        DeviceError, match=r"does not have enough memory for a copy \(no room\); pass another device"
    )
    with room, end.at_work("a copy"):
        raise torch.OutOfMemoryError("no room. \nTry this and that")
    gone = pytest.raises(
        DeviceError,
        match=r"a simulated device failed during a copy \(gone\).*create a HostOffload on another",
    )
    with gone, end.at_work("a copy"):
        raise RuntimeError("gone")
    lost = pytest.raises(DeviceError, match="layers that fraction keeps on the device are lost")
    with lost, DeviceEnd(Simulated(), [], has_residents=True).at_work("a copy"):
        raise RuntimeError("gone")
    for other in (TensorError("own"), ArithmeticError("strange")):
        with pytest.raises(type(other)), end.at_work("a copy"):
            raise other
