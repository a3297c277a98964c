"""The queue of a simulated device: its kernels' reads and writes, and its copies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from gradwire.devices.base import bring_back, fetch

Range = tuple[int, int]
"""Addresses: the first byte, and the one after the last."""

_POISON = 0xFF


class Operation:
    """One thing that a stream has to do; ``ranges`` are what it reads and writes."""

    def __init__(self, *ranges: Range) -> None:
        self.ranges, self.done, self.until = ranges, False, 0.0

    def run(self) -> None:
        """Do it."""

    def touches(self, *ranges: Range) -> bool:
        """Return whether it has to do with any of these."""
        return any(a < stop and start < b for a, b in self.ranges for start, stop in ranges)


class Write(Operation):
    """A kernel's write: the memory gets it back when the stream gets there."""

    def __init__(self, written: Range, keep: object) -> None:
        super().__init__(written)
        self._keep = keep
        self.take()

    def take(self) -> None:
        """Remember what the memory holds."""
        start, stop = self.ranges[0]
        self._values = ctypes.string_at(start, stop - start)

    def poison(self) -> None:
        """Let the memory hold poison until ``run``."""
        spoil(self.ranges[0])

    def run(self) -> None:
        """Let the memory hold what was written."""
        ctypes.memmove(self.ranges[0][0], self._values, len(self._values))

    def outside(self, place: Range) -> list[Write]:
        """Return the parts of it that have nothing to do with ``place``."""
        start, stop = self.ranges[0]
        parts = [
            Write(each, self._keep) for each in ((start, place[0]), (place[1], stop)) if each[0] < each[1]
        ]
        for part in parts:
            part.until = self.until
        return parts


class Read(Operation):
    """A kernel's read: until the stream gets there, no other operation may write it."""

    def __init__(self, read: Range, keep: object) -> None:
        super().__init__(read)
        self._keep = keep


class Copy(Operation):
    """A copy to the host, or from it (``up``)."""

    def __init__(self, tensor: torch.Tensor, host: torch.Tensor, *, up: bool) -> None:
        super().__init__(extent(tensor), extent(host))
        self.up, self.races = up, False
        self._tensor, self._host = tensor, host

    def run(self) -> None:
        """Copy; where somebody else uses the memory at the same time, the result is poison."""
        if self.races:
            self.spoil()
        elif self.up:
            bring_back(self._tensor, self._host)
        else:
            fetch(self._host, self._tensor)

    def spoil(self) -> None:
        """Let the target hold poison."""
        target = self._tensor if self.up else self._host
        if target.is_contiguous():
            spoil(extent(target))
        else:  # what lies between its elements is not its own
            with torch.inference_mode():
                target.detach().fill_(torch.nan)


def spoil(memory: Range) -> None:
    """Fill memory with poison."""
    ctypes.memset(memory[0], _POISON, memory[1] - memory[0])


def extent(tensor: torch.Tensor) -> Range:
    """Return the addresses between which a tensor's elements lie."""
    if tensor.numel() == 0:
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


# What a kernel does to a simulated device: it has run when its stream gets there, and not before.

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
    """Run a kernel now, and let what it writes take effect later, on the current stream.

    ``used`` are all the tensors that it reads or writes. ``made`` returns those of its result that are the
    device's and new, or None where the host waits for the result.
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
    """Spoil the copies of other streams from what is written now; return what both write."""
    copies = [each for each in device.in_use(device.current, *used) if isinstance(each, Copy)]
    for each in copies:
        each.races = each.races or each.up or each.touches(*written)
    return [place for place in written if any(each.up and each.touches(place) for each in copies)]


def _queue_writes(device: Simulated, held: Sequence[Write], written: Sequence[torch.Tensor]) -> None:
    """Hold back what was written, at the end of the stream; what was before keeps its place there."""
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
