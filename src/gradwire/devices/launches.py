"""What a kernel does to a simulated device: it has run when its stream gets there, and not before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from gradwire.devices.operations import Copy, Range, Read, Write, extent, spoil

T = TypeVar("T")
Simulated: TypeAlias = Any
"""``gradwire.devices.Simulated``, which imports this module."""


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
