"""Clocks that time training steps on the device that computes, and a callback after backward passes."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch
from torch.autograd import Variable

# Times within a step, by the clock of the device that computes: the host's, or an accelerator's.


class Marks(Protocol):
    """A clock that records marks without blocking, and reads their times later."""

    def now(self) -> Any:
        """Return a mark of the current time."""

    def seconds(self, mark: Any) -> float:
        """Return a mark's time in seconds from a fixed origin. The call may wait for the device."""


class HostMarks:
    """The clock of the host, whose marks are the times themselves."""

    def now(self) -> float:
        """Return a mark of the current time."""
        return perf_counter()

    def seconds(self, mark: float) -> float:
        """Return the time of a mark, which is the mark itself."""
        return mark


class DeviceMarks:
    """The clock of an accelerator, whose marks are events in a stream, because the host runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self._device = device.type
        self._first = self.now()

    def now(self) -> torch.Event:
        """Return an event that the device reaches after all work that is now queued."""
        mark = torch.Event(self._device, enable_timing=True)
        mark.record()
        return mark

    def seconds(self, mark: torch.Event) -> float:
        """Wait for an event, and return the time at which the device reached the event."""
        mark.synchronize()
        return 1e-3 * self._first.elapsed_time(mark)


def marks_of(device: torch.device) -> Marks:
    """Return the clock that times the training of a model on this device."""
    return HostMarks() if device.type == "cpu" else DeviceMarks(device)


# The end of a backward pass, after the callbacks of DDP and FSDP.


def after_backward(then: Callable[[], None]) -> None:
    """Call ``then`` at the end of the running backward pass.

    During the pass, DDP and FSDP queue callbacks that wait for gradients. ``then`` runs after those
    callbacks, because a callback queues it.
    """
    queue = Variable._execution_engine.queue_callback
    queue(lambda: queue(then))
