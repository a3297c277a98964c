"""The one seam between host memory and the devices that tensors live on."""

from gradwire.devices.base import Device, Event, Stream
from gradwire.devices.choice import device_of
from gradwire.devices.cpu import CPU
from gradwire.devices.simulated import Simulated
from gradwire.devices.staging import FLOATS, Staged, Staging, on_host

__all__ = [
    "CPU",
    "FLOATS",
    "Device",
    "Event",
    "Simulated",
    "Staged",
    "Staging",
    "Stream",
    "device_of",
    "on_host",
]
