"""A device on the CPU that is as late as a device can be: for tests, and for experiments on a paced link.

Its tensors are CPU tensors that it owns. A copy or a kernel takes effect only when somebody waits for its
stream, never before, and until then the memory that it writes holds poison: bytes of ones, which are a NaN in
every float. So where a wait is missing the result is wrong in every run, not in one of a thousand.

torch's operations become kernels within ``Kernels``. Elsewhere they see the memory as it is.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from gradwire.devices.base import Device, Event, Stream
from gradwire.devices.cpu import bring_back, fetch

Range = tuple[int, int]
"""Addresses: the first byte, and the one after the last."""

_POISON = 0xFF
_owners: dict[int, tuple[Any, Simulated]] = {}
"""By the address of a storage, which no other one has as long as the weak reference is kept."""
_owning = threading.Lock()


def owner_of(tensor: torch.Tensor) -> Simulated | None:
    """Return the simulated device that owns the memory of a CPU tensor, if one does."""
    if not _owners or tensor.layout != torch.strided:
        return None
    found = _owners.get(tensor.untyped_storage()._cdata)
    return None if found is None or found[0].expired() else found[1]


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
    """What a kernel has written: the memory gets it back when the stream gets there."""

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
    """What a kernel has read: until the stream gets there, nobody else may write it."""

    def __init__(self, read: Range, keep: object) -> None:
        super().__init__(read)
        self._keep = keep


class Copy(Operation):
    """A copy to the host, or from it (``up``)."""

    def __init__(self, tensor: torch.Tensor, host: torch.Tensor, *, up: bool) -> None:
        super().__init__(extent(tensor), extent(host))
        self.up, self.races = up, False
        self._tensor, self._host = tensor, host
        self._spoil()

    def run(self) -> None:
        """Copy; where somebody else uses the memory at the same time, the result is poison."""
        if self.races:
            self._spoil()
        elif self.up:
            bring_back(self._tensor, self._host)
        else:
            fetch(self._host, self._tensor)

    def _spoil(self) -> None:
        target = self._tensor if self.up else self._host
        if target.is_contiguous():
            spoil(extent(target))
        else:  # what lies between its elements is not its own
            with torch.inference_mode():
                target.detach().fill_(torch.nan)


class _Wait(Operation):
    """A stream waits for what another one has to do first."""

    def __init__(self, event: SimulatedEvent) -> None:
        super().__init__()
        self._event = event

    def run(self) -> None:
        """Let the other stream come there."""
        self._event.reach()

    def before(self) -> set[Operation]:
        """Return what the other stream has to do until then."""
        return self._event.before()


class SimulatedEvent(Event):
    """A place in a stream."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._stream, self._place = stream, stream.queue_up(Operation())

    def wait(self) -> None:
        """Let the host wait until the copies before have had their time, and make them."""
        if self._stream.device.waits_here("wait"):
            self.reach()

    def order(self) -> None:
        """Let the current stream wait."""
        if self._stream.device.waits_here("order"):
            self._stream.device.current.wait_for(self)

    def reach(self) -> None:
        """Let the stream come here."""
        time.sleep(max(self._place.until - time.monotonic(), 0.0))
        self._stream.run(self._place)

    def before(self) -> set[Operation]:
        """Return what is still to be done until then."""
        return self._stream.before(self._place)

    @property
    def until(self) -> float:
        """When all before has had its time."""
        return self._place.until


class SimulatedStream(Stream):
    """Operations that are done as late as possible, in their order."""

    def __init__(self, device: Simulated) -> None:
        self.device = device
        self._queue: deque[Operation] = deque()
        self._until = 0.0

    def queue_up(self, operation: Operation, seconds: float = 0.0) -> Operation:
        """Give the stream something to do that takes so long."""
        with self.device.at_work():
            self._until = operation.until = max(self._until, time.monotonic()) + seconds
            self._queue.append(operation)
            self.device.at_work_on(self)
        return operation

    def run(self, last: Operation | None = None) -> None:
        """Do what is queued, up to ``last``."""
        with self.device.at_work():
            while self._queue and not (last is not None and last.done):
                operation = self._queue.popleft()
                operation.run()
                operation.done = True
            if not self._queue:
                self.device.done_with(self)

    def wait_for(self, event: SimulatedEvent) -> None:
        """Queue a wait for another stream."""
        with self.device.at_work():
            self._until = max(self._until, event.until)
            self.queue_up(_Wait(event))

    def sleep(self) -> None:
        """Let the time pass that all which is queued takes."""
        time.sleep(max(self._until - time.monotonic(), 0.0))

    def honour_waits(self) -> None:
        """Let other streams come as far as this one waits for, but do nothing else of what is queued."""
        while wait := next((each for each in self._queue if isinstance(each, _Wait)), None):
            self._queue.remove(wait)
            wait.run()

    def pending(self, *ranges: Range) -> list[Operation]:
        """Return what is queued and touches any of these."""
        return [each for each in self._queue if each.touches(*ranges)]

    def before(self, last: Operation | None = None) -> set[Operation]:
        """Return all that is done before what is queued next, or before ``last``, in other streams, too."""
        found = set[Operation]()
        for each in self._queue if last is None or not last.done else ():
            found.add(each)
            if isinstance(each, _Wait):
                found |= each.before()
            if each is last:
                break
        return found

    def replace(self, operation: Operation, *others: Operation) -> None:
        """Do ``others`` in its place."""
        place = self._queue.index(operation)
        self._queue.remove(operation)
        for each in reversed(others):
            self._queue.insert(place, each)

    def follow(self) -> None:
        """Let this stream wait for the current one."""
        if self.device.waits_here("follow"):
            self.wait_for(SimulatedEvent(self.device.current))

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue a copy; ``host`` holds poison meanwhile."""
        return self._copy(host, tensor, up=False)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue a copy; ``tensor`` holds poison meanwhile."""
        return self._copy(host, tensor, up=True)

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete it when the stream has come here: torch's futures know real accelerators' events only."""
        if self.device.waits_here("complete"):
            SimulatedEvent(self).reach()
        future.set_result(result)

    def _copy(self, host: torch.Tensor, tensor: torch.Tensor, *, up: bool) -> Event:
        with self.device.at_work():
            if self.pending(extent(tensor if up else host)):
                self.run()  # ordered before this copy, so poison must not come between
            operation = Copy(tensor, host, up=up)
            used = self.device.in_use(self, extent(tensor))
            operation.races = any(up or isinstance(each, Write) for each in used)
            self.queue_up(operation, self.device.seconds(tensor.nbytes, up=up))
            return SimulatedEvent(self)


class Simulated(Device):
    """A device of its own, without any of torch's.

    Parameters
    ----------
    nbytes_per_s
        How fast copies are, in each direction; None for no time at all. Kernels take no time.
    without
        A wait that does nothing, to see that it is needed: its name (``follow``, ``wait``, ``order`` or
        ``complete``) and which one of that name, from 0 up.

    Attributes
    ----------
    waits
        How many waits there were of each name; ``without`` counts by it.
    current
        The current stream, of all threads.
    """

    def __init__(self, nbytes_per_s: float | None = None, without: tuple[str, int] | None = None) -> None:
        self.waits: Counter[str] = Counter()
        self.without, self._nbytes_per_s = without, nbytes_per_s
        self._link_until = {True: 0.0, False: 0.0}
        self._lock, self._busy = threading.RLock(), threading.local()
        self._streams: dict[SimulatedStream, None] = {}  # those that have something to do
        self.current = self.stream()

    def __str__(self) -> str:
        return "a simulated device"

    def zeros(self, count: int) -> torch.Tensor:
        """Return so many zeros that this device owns."""
        return self.own(torch.zeros(count, dtype=torch.float32, device="cpu"))

    def pinned(self, count: int) -> torch.Tensor:
        """Return host memory."""
        return torch.empty(count, dtype=torch.float32, device="cpu")

    def stream(self) -> SimulatedStream:
        """Return a new stream."""
        return SimulatedStream(self)

    def future(self) -> torch.futures.Future[Any]:
        """Return a future for the CPU: ``devices`` would have to be real."""
        return torch.futures.Future()

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Let the memory of a CPU tensor be this device's from now on; return the tensor."""
        storage = tensor.untyped_storage()
        with _owning:
            for key in [key for key, (reference, _) in _owners.items() if reference.expired()]:
                del _owners[key]
            _owners[storage._cdata] = StorageWeakRef(storage), self  # type: ignore[no-untyped-call]
        return tensor

    def adopt(self, model: nn.Module) -> nn.Module:
        """Own the parameters and buffers of a model, as ``model.cuda()`` would; return the model."""
        for tensor in (*model.parameters(), *model.buffers()):
            self.own(tensor.data)
        return model

    def synchronize(self) -> None:
        """Do all that is queued anywhere."""
        for stream in list(self._streams):
            stream.sleep()
            stream.run()

    def at_work_on(self, stream: SimulatedStream) -> None:
        """Note that a stream has something to do."""
        self._streams[stream] = None

    def done_with(self, stream: SimulatedStream) -> None:
        """Note that it has nothing to do any more."""
        self._streams.pop(stream, None)

    def waits_here(self, name: str) -> bool:
        """Count a wait and return whether it is one."""
        with self._lock:
            number = self.waits[name]
            self.waits[name] += 1
        return self.without != (name, number)

    def in_use(self, stream: SimulatedStream, *memory: Range) -> list[Operation]:
        """Return what others have to do with this memory, and ``stream`` does not wait for."""
        before = stream.before()
        every = [each for other in self._streams if other is not stream for each in other.pending(*memory)]
        return [each for each in every if each not in before]

    def seconds(self, nbytes: int, *, up: bool) -> float:
        """Return how long a copy takes that is queued now: a link carries one at a time in each direction."""
        if self._nbytes_per_s is None:
            return 0.0
        now = time.monotonic()
        self._link_until[up] = max(self._link_until[up], now) + nbytes / self._nbytes_per_s
        return self._link_until[up] - now

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be alone with the streams; torch's operations are no kernels meanwhile."""
        with self._lock:
            before, self._busy.now = self.is_busy, True
            try:
                yield
            finally:
                self._busy.now = before

    @property
    def is_busy(self) -> bool:
        """Whether this thread is at work on the streams."""
        return getattr(self._busy, "now", False)


def spoil(memory: Range) -> None:
    """Fill memory with poison."""
    ctypes.memset(memory[0], _POISON, memory[1] - memory[0])


def extent(tensor: torch.Tensor) -> Range:
    """Return the addresses between which a tensor's elements lie."""
    if tensor.numel() == 0:
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()
