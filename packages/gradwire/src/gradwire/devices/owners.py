"""Devices that own CPU memory: a simulated device in tests and experiments. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from gradwire.devices.base import Device

_owners: list[Callable[[torch.Tensor], Device | None]] = []


def register(owner: Callable[[torch.Tensor], Device | None]) -> None:
    """Register a function that returns the device that owns a CPU tensor, or None."""
    if owner not in _owners:
        _owners.append(owner)


def owner_of(tensor: torch.Tensor) -> Device | None:
    """Return the device that owns a CPU tensor's memory; None for the CPU itself, the usual case."""
    for owner in _owners:
        found = owner(tensor)
        if found is not None:
            return found
    return None
