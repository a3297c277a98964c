"""Which device a tensor lives on: the one place where that is decided."""

from __future__ import annotations

import torch

from gradwire.devices.base import Device
from gradwire.devices.cpu import CPU
from gradwire.devices.cuda import cuda
from gradwire.devices.simulated import owner_of


def device_of(tensor: torch.Tensor) -> Device:
    """Return the device of ``tensor``; a simulated one where that owns its memory."""
    if tensor.device.type != "cpu":
        return cuda(tensor.device)
    return owner_of(tensor) or CPU
