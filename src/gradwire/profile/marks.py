"""Moments in a step, by the clock of what computes: the host's, or an accelerator's own."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

import torch


class Marks(Protocol):
    """Notes moments without waiting, and tells their seconds later."""

    def now(self) -> Any:
        """Return a mark of this moment."""

    def seconds(self, mark: Any) -> float:
        """Return when that was, in seconds from some moment on; this may wait for a device."""


class HostMarks:
    """Moments by the host's clock."""

    def now(self) -> float:
        """Return a mark of this moment."""
        return perf_counter()

    def seconds(self, mark: float) -> float:
        """Return when that was."""
        return mark


class DeviceMarks:
    """Moments in the stream of work of an accelerator, which the host runs ahead of."""

    def __init__(self, device: torch.device) -> None:
        self._device = device.type
        self._first = self.now()

    def now(self) -> torch.Event:
        """Return a mark behind all work that is queued."""
        mark = torch.Event(self._device, enable_timing=True)
        mark.record()
        return mark

    def seconds(self, mark: torch.Event) -> float:
        """Return when the device had come there."""
        mark.synchronize()
        return 1e-3 * self._first.elapsed_time(mark)


def marks_of(device: torch.device) -> Marks:
    """Return what notes moments where the gradients are."""
    return HostMarks() if device.type == "cpu" else DeviceMarks(device)
