"""Where replicas live: devices, and the host memory that is copied to and from them.

What a device raises when it is lost, or has no memory, becomes one sentence here. The masters and the
optimizer's state on the host are not touched then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gradwire.devices import Device
from gradwire.devices.cpu import CPU
from gradwire.errors import DeviceError, GradwireError
from gradwire.training.offload.layers import Layer


@dataclass(frozen=True)
class Place:
    """A device with a replica.

    Attributes
    ----------
    device
        Of the replica.
    layers
        Those whose weights and gradients travel, in the same order at every place.
    pinned
        Whether copies use pinned memory of the host.
    """

    device: Device
    layers: Sequence[Layer]
    pinned: bool = True

    def host_memory(self, count: int) -> torch.Tensor:
        """Return so many float32 on the host, for copies. Raises ``DeviceError``."""
        if not self.pinned:
            return CPU.pinned(count)
        try:
            return self.device.pinned(count)
        except RuntimeError as error:
            raise DeviceError(
                f"HostOffload wants {4 * count} bytes of pinned memory for copies to {self.device}, but the "
                f"host has none left ({_line(error)}); pass pin_memory=False, or lock less memory elsewhere"
            ) from error

    @contextmanager
    def at_work(self, doing: str) -> Iterator[None]:
        """Raise ``DeviceError`` where the device fails within the block, which is there for ``doing``."""
        try:
            yield
        except GradwireError:
            raise
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{self.device} has not enough memory for {doing} ({_line(error)}); the masters are as "
                "before, so name another device, or a larger fraction="
            ) from error
        except RuntimeError as error:
            raise DeviceError(
                f"{self.device} failed at {doing} ({_line(error)}); the masters and the optimizer's state on "
                "the host are intact, so save them, close this HostOffload, and make one on another device"
            ) from error


def _line(error: BaseException) -> str:
    """Return the first line of an error: torch's go on with advice."""
    return str(error).partition("\n")[0].strip(" .")
