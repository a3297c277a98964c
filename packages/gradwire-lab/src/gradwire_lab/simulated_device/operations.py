"""The queue of a simulated device, with the reads and writes of its kernels, and its copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from gradwire.devices.base import bring_back, fetch

Range = tuple[int, int]
"""A memory range: the address of the first byte, and the address after the last."""

_POISON = 0xFF


class Operation:
    """An operation in a stream's queue, where ``ranges`` is the memory that it reads or writes."""

    def __init__(self, *ranges: Range) -> None:
        self.ranges, self.done, self.until = ranges, False, 0.0

    def run(self) -> None:
        """Execute the operation."""

    def touches(self, *ranges: Range) -> bool:
        """Return whether this operation overlaps any of ``ranges``."""
        return any(a < stop and start < b for a, b in self.ranges for start, stop in ranges)


class Write(Operation):
    """A kernel's write, whose values are written to memory when the stream reaches it."""

    def __init__(self, written: Range, keep: object) -> None:
        super().__init__(written)
        self._keep = keep
        self.take()

    def take(self) -> None:
        """Save the current values of the memory."""
        start, stop = self.ranges[0]
        self._values = ctypes.string_at(start, stop - start)

    def poison(self) -> None:
        """Fill the memory with poison until ``run``."""
        spoil(self.ranges[0])

    def run(self) -> None:
        """Write the saved values to the memory."""
        ctypes.memmove(self.ranges[0][0], self._values, len(self._values))

    def outside(self, place: Range) -> list[Write]:
        """Return the parts of this write that don't overlap ``place``."""
        start, stop = self.ranges[0]
        parts = [
            Write(each, self._keep) for each in ((start, place[0]), (place[1], stop)) if each[0] < each[1]
        ]
        for part in parts:
            part.until = self.until
        return parts


class Read(Operation):
    """A kernel's read. Other streams must not write its memory before the stream reaches it."""

    def __init__(self, read: Range, keep: object) -> None:
        super().__init__(read)
        self._keep = keep


class Copy(Operation):
    """A copy to the host or, if ``up`` is true, from the host to the device."""

    def __init__(self, tensor: torch.Tensor, host: torch.Tensor, *, up: bool) -> None:
        super().__init__(extent(tensor), extent(host))
        self.up, self.races = up, False
        self._tensor, self._host = tensor, host

    def run(self) -> None:
        """Execute the copy or, if another stream uses the memory at the same time, poison the target."""
        if self.races:
            self.spoil()
        elif self.up:
            bring_back(self._tensor, self._host)
        else:
            fetch(self._host, self._tensor)

    def spoil(self) -> None:
        """Fill the target with poison."""
        target = self._tensor if self.up else self._host
        if target.is_contiguous():
            spoil(extent(target))
        else:  # other tensors may own the memory between the target's elements
            with torch.inference_mode():
                target.detach().fill_(torch.nan)


def spoil(memory: Range) -> None:
    """Fill memory with poison."""
    ctypes.memset(memory[0], _POISON, memory[1] - memory[0])


def extent(tensor: torch.Tensor) -> Range:
    """Return the memory range from a tensor's first to its last element."""
    if tensor.numel() == 0:
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


# A kernel on a simulated device: it takes effect when its stream reaches it, and not before.

T = TypeVar("T")
Simulated: TypeAlias = Any
"""``gradwire_lab.simulated_device.simulated.Simulated``, which imports this module."""


def launch(
    device: Simulated,
    kernel: Callable[[], T],
    used: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    made: Callable[[T], Sequence[torch.Tensor] | None] = lambda _: (),
) -> T:
    """Run a kernel on all ``used`` tensors now, and queue its writes on the current stream.

    ``made`` returns the new device tensors in its result, or None if the host waits for the result.
    """
    device.check()
    device.current.sleep()
    with device.at_work():
        stream = device.current
        stream.honour_waits()
        places = [extent(each) for each in used]
        races = _races(device, places, [extent(each) for each in written])
        held = [each for each in stream.pending(*places) if isinstance(each, Write)]
        for each in held:
            each.run()
        result = kernel()
        for place in races:
            spoil(place)
        new = made(result)
        if new is None:
            stream.run()
            return result
        for each in held:
            each.take()
        _queue_writes(device, held, [*written, *new])
        for place, tensor in zip(places, used, strict=True):
            for old in stream.pending(place):
                if isinstance(old, Read) and old.ranges == (place,):
                    stream.replace(old)
            stream.queue_up(Read(place, tensor))
        return result


def _races(device: Simulated, used: Sequence[Range], written: Sequence[Range]) -> list[Range]:
    """Mark copies that race with this kernel, and return the ranges that the kernel and a copy write."""
    copies = [each for each in device.in_use(device.current, *used) if isinstance(each, Copy)]
    for each in copies:
        each.races = each.races or each.up or each.touches(*written)
    return [place for place in written if any(each.up and each.touches(place) for each in copies)]


def _queue_writes(device: Simulated, held: Sequence[Write], written: Sequence[torch.Tensor]) -> None:
    """Queue the kernel's writes at the end; the rest of older writes keeps its place in the queue."""
    stream, every = device.current, list(held)
    for place in {extent(tensor): None for tensor in written if tensor.numel()}:
        for old in [each for each in every if each.touches(place)]:
            parts = old.outside(place)
            stream.replace(old, *parts)
            every.remove(old)
            every += parts
        write = Write(place, written)
        stream.queue_up(write)
        every.append(write)
    for write in every:
        write.poison()
