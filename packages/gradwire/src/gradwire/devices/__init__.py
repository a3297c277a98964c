"""Transfers between host memory and devices, and simulated devices, which own CPU memory.

Names are loaded on first use, so that codecs can import ``owner_of`` without importing torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gradwire.devices.base import CPU, Device, Event, Stream
    from gradwire.devices.staging import FLOATS, Staged, Staging, device_of, on_host

_HOMES = {
    "base": ("CPU", "Device", "Event", "Stream"),
    "staging": ("FLOATS", "Staged", "Staging", "device_of", "on_host"),
}
__all__ = [
    "CPU",
    "FLOATS",
    "Device",
    "Event",
    "Staged",
    "Staging",
    "Stream",
    "device_of",
    "on_host",
    "owner_of",
    "register",
]


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Simulated devices in tests and experiments, which own memory of the CPU.

_owners: list[Callable[[torch.Tensor], Device | None]] = []


def register(owner: Callable[[torch.Tensor], Device | None]) -> None:
    """Register a function that returns the simulated device that owns a CPU tensor's memory, or None."""
    if owner not in _owners:
        _owners.append(owner)


def owner_of(tensor: torch.Tensor) -> Device | None:
    """Return the simulated device that owns a CPU tensor's memory, or usually None: the CPU owns it."""
    for owner in _owners:
        found = owner(tensor)
        if found is not None:
            return found
    return None
