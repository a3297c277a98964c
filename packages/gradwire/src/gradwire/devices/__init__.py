"""Transfers between host memory and devices, and simulated devices, which own CPU memory."""

from gradwire.devices.base import CPU, Device, Event, Stream, owner_of, register
from gradwire.devices.staging import Staged, Staging, device_of, on_host

__all__ = [
    "CPU",
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
