"""Transfers between host memory and devices.

Names are loaded on first use, so that codecs can import ``owners`` without importing torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.devices.base import CPU, Device, Event, Stream
    from gradwire.devices.staging import FLOATS, Staged, Staging, device_of, on_host

_HOMES = {
    "base": ("CPU", "Device", "Event", "Stream"),
    "staging": ("FLOATS", "Staged", "Staging", "device_of", "on_host"),
}
__all__ = ["CPU", "FLOATS", "Device", "Event", "Staged", "Staging", "Stream", "device_of", "on_host"]


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
