"""A simulated device on the CPU that delays all operations, for tests and experiments with paced copies.

The tensors of the device are CPU tensors that it owns. A copy or a kernel takes effect only when a caller
waits for its stream. Until then, the memory that the copy or kernel writes holds poison: bytes of ones, a NaN
in every float. So a missing wait gives a wrong result in every run, not in one of a thousand runs.

Within ``Kernels``, torch's operations become kernels. Outside of ``Kernels``, torch's operations read and
write the memory directly. A *prompt* device only paces copies. Copies take effect immediately, and torch's
operations run unchanged.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from gradwire import devices
from gradwire.devices.base import Device, Event, Stream, T
from gradwire_lab.simulated_device.operations import Copy, Operation, Range, Write, extent, launch

_owners: dict[int, tuple[Any, Simulated]] = {}
"""The owner of each storage by its address, which is unique while the weak reference exists."""
_owning = threading.Lock()


def owner_of(tensor: torch.Tensor) -> Simulated | None:
    """Return the simulated device that owns the memory of a CPU tensor, or None."""
    if not _owners or tensor.layout != torch.strided:
        return None
    found = _owners.get(tensor.untyped_storage()._cdata)
    return None if found is None or found[0].expired() else found[1]


devices.register(owner_of)


class _Wait(Operation):
    """A stream's wait for an event of another stream."""

    def __init__(self, event: SimulatedEvent) -> None:
        super().__init__()
        self._event = event

    def run(self) -> None:
        """Run the other stream up to the event."""
        self._event.reach()

    def before(self) -> set[Operation]:
        """Return the other stream's operations before the event."""
        return self._event.before()


class SimulatedEvent(Event):
    """A recorded point in a stream."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._stream, self._place = stream, stream.queue_up(Operation())

    def wait(self) -> None:
        """Block the host until earlier copies are due, and execute these copies."""
        if self._stream.device.waits_here("wait"):
            self.reach()

    def order(self) -> None:
        """Make the current stream wait for this event. On a prompt device, block the host instead."""
        if self._stream.device.prompt:
            self.wait()
        elif self._stream.device.waits_here("order"):
            self._stream.device.current.wait_for(self)

    def reach(self) -> None:
        """Run the stream up to this event."""
        _sleep_until(self._place.until)
        self._stream.run(self._place)

    def before(self) -> set[Operation]:
        """Return the pending operations before this event."""
        return self._stream.before(self._place)

    @property
    def until(self) -> float:
        """The time at which all earlier operations are finished."""
        return self._place.until


class SimulatedStream(Stream):
    """A queue of operations that run in order, as late as possible."""

    def __init__(self, device: Simulated) -> None:
        self.device = device
        self._queue: deque[Operation] = deque()
        self._until = 0.0

    def queue_up(self, operation: Operation, until: float = 0.0) -> Operation:
        """Queue an operation that isn't finished before the time ``until``, and return it."""
        with self.device.at_work():
            self._until = operation.until = max(self._until, time.monotonic(), until)
            self._queue.append(operation)
            if self.device.prompt:
                self.run()
            else:
                self.device.at_work_on(self)
        return operation

    def run(self, last: Operation | None = None) -> None:
        """Execute the queued operations, up to and including ``last``."""
        with self.device.at_work():
            while self._queue and not (last is not None and last.done):
                operation = self._queue.popleft()
                operation.run()
                operation.done = True
            if not self._queue:
                self.device.done_with(self)

    def wait_for(self, event: SimulatedEvent) -> None:
        """Queue a wait for an event of another stream."""
        with self.device.at_work():
            self._until = max(self._until, event.until)
            self.queue_up(_Wait(event))

    def sleep(self) -> None:
        """Sleep until all queued operations are due."""
        _sleep_until(self._until)

    def honour_waits(self) -> None:
        """Execute this stream's queued waits, and none of its other operations."""
        while wait := next((each for each in self._queue if isinstance(each, _Wait)), None):
            self._queue.remove(wait)
            wait.run()

    def pending(self, *ranges: Range) -> list[Operation]:
        """Return the queued operations that overlap any of ``ranges``."""
        return [each for each in self._queue if each.touches(*ranges)]

    def before(self, last: Operation | None = None) -> set[Operation]:
        """Return all streams' operations that run before the next queued one, or up to ``last``."""
        found = set[Operation]()
        for each in self._queue if last is None or not last.done else ():
            found.add(each)
            if isinstance(each, _Wait):
                found |= each.before()
            if each is last:
                break
        return found

    def replace(self, operation: Operation, *others: Operation) -> None:
        """Replace a queued operation with ``others``."""
        place = self._queue.index(operation)
        self._queue.remove(operation)
        for each in reversed(others):
            self._queue.insert(place, each)

    @property
    @contextmanager
    def current(self) -> Iterator[None]:
        """A context manager that makes this stream the current stream of this thread."""
        before, self.device.current = self.device.current, self
        try:
            yield
        finally:
            self.device.current = before

    def follow(self) -> None:
        """Make this stream wait for the current stream."""
        if self.device.waits_here("follow"):
            self.wait_for(SimulatedEvent(self.device.current))

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Queue a copy to ``host``, which holds poison until the copy runs."""
        return self._copy(host, tensor, up=False)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Queue a copy to ``tensor``, which holds poison until the copy runs."""
        return self._copy(host, tensor, up=True)

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Run the stream, then complete the future: torch's futures support only events of real devices."""
        if self.device.waits_here("complete"):
            SimulatedEvent(self).reach()
        future.set_result(result)

    def _copy(self, host: torch.Tensor, tensor: torch.Tensor, *, up: bool) -> Event:
        self.device.check()
        with self.device.at_work():
            if self.pending(extent(tensor if up else host)):
                self.run()  # pending operations must see the memory before this copy poisons it
            operation = Copy(tensor, host, up=up)
            used = self.device.in_use(self, extent(tensor))
            operation.races = any(up or isinstance(each, Write) for each in used)
            if not self.device.prompt:
                operation.spoil()
            self.queue_up(operation, self.device.carry(tensor.nbytes, self._until, up=up))
            return SimulatedEvent(self)


class Simulated(Device):
    """A simulated device, independent of torch's devices.

    Parameters
    ----------
    nbytes_per_s
        The rate of copies in each direction; None is infinite. Kernels take no time.
    prompt
        Whether copies take effect when they are queued, and the host waits in place of the current stream.
        torch's operations then run without ``Kernels``, at full speed. A missing wait isn't detected.
    without
        A wait to skip, to test that the wait is needed: its name (``follow``, ``wait``, ``order``, or
        ``complete``) and its index among the waits of that name, from 0 up.
    refused
        An allocation to fail for lack of memory: its name (``adopt``, ``zeros``, or ``pinned``) and its index
        among the allocations of that name, from 0 up.

    Attributes
    ----------
    waits, allocations
        The number of waits and allocations so far by name, which ``without`` and ``refused`` refer to.
    current
        The current stream, which is the same for all threads, except within the ``current`` block of a
        stream.
    """

    is_named_by_itself = True

    def __init__(
        self,
        nbytes_per_s: float | None = None,
        without: tuple[str, int] | None = None,
        *,
        prompt: bool = False,
        refused: tuple[str, int] | None = None,
    ) -> None:
        self.waits, self.allocations = Counter[str](), Counter[str]()
        self.without, self.refused, self.prompt = without, refused, prompt
        self._lost = False
        self.pace(nbytes_per_s, nbytes_per_s)
        self._link_until = {True: 0.0, False: 0.0}
        self._lock, self._thread = threading.RLock(), threading.local()
        self._streams: dict[SimulatedStream, None] = {}  # streams with queued operations
        self._default = self.stream()

    def __str__(self) -> str:
        return "a simulated device"

    def pace(self, nbytes_per_s: float | None, back_nbytes_per_s: float | None) -> None:
        """Set the rates of copies to the device and back to the host."""
        self._nbytes_per_s = {True: nbytes_per_s, False: back_nbytes_per_s}

    def zeros(self, count: int) -> torch.Tensor:
        """Return ``count`` zeros that this device owns."""
        self._allocate("zeros")
        return self.own(torch.zeros(count, dtype=torch.float32, device="cpu"))

    def pinned(self, count: int) -> torch.Tensor:
        """Return ``count`` uninitialised floats in host memory."""
        self._allocate("pinned")
        return torch.empty(count, dtype=torch.float32, device="cpu")

    def stream(self) -> SimulatedStream:
        """Return a new stream."""
        return SimulatedStream(self)

    def launch(
        self, kernels: Callable[[], T], reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> T:
        """Run the kernels now. Their writes take effect later, on the current stream."""
        return launch(self, kernels, [*reads, *writes], writes)

    def event(self) -> SimulatedEvent:
        """Record an event on the current stream and return it."""
        return SimulatedEvent(self.current)

    def future(self) -> torch.futures.Future[Any]:
        """Return a CPU future, because the ``devices`` of torch's futures must be real."""
        return torch.futures.Future()

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make this device the owner of a CPU tensor's memory, and return the tensor."""
        storage = tensor.untyped_storage()
        with _owning:
            for key in [key for key, (reference, _) in _owners.items() if reference.expired()]:
                del _owners[key]
            _owners[storage._cdata] = StorageWeakRef(storage), self  # type: ignore[no-untyped-call]
        return tensor

    def adopt(self, model: nn.Module) -> nn.Module:
        """Own a model's parameters and buffers, and return the model; the counterpart of ``model.cuda()``."""
        self._allocate("adopt")
        for tensor in (*model.parameters(), *model.buffers()):
            self.own(tensor.data)
        return model

    def lose(self) -> None:
        """Simulate the loss of the device: any further use raises ``RuntimeError``."""
        self._lost = True

    def check(self) -> None:
        """Raise ``RuntimeError`` if the device is lost."""
        if self._lost:
            raise RuntimeError("simulated error: the device is lost")

    def synchronize(self) -> None:
        """Wait for all streams and execute their queued operations."""
        for stream in list(self._streams):
            stream.sleep()
            stream.run()

    def at_work_on(self, stream: SimulatedStream) -> None:
        """Register a stream with queued operations."""
        self._streams[stream] = None

    def done_with(self, stream: SimulatedStream) -> None:
        """Remove a stream without queued operations."""
        self._streams.pop(stream, None)

    def waits_here(self, name: str) -> bool:
        """Count a wait, and return whether to wait, which is False for the wait in ``without``."""
        self.check()
        with self._lock:
            number = self.waits[name]
            self.waits[name] += 1
        return self.without != (name, number)

    def in_use(self, stream: SimulatedStream, *memory: Range) -> list[Operation]:
        """Return other streams' operations on this memory for which ``stream`` doesn't wait."""
        before = stream.before()
        every = [each for other in self._streams if other is not stream for each in other.pending(*memory)]
        return [each for each in every if each not in before]

    def carry(self, nbytes: int, begin: float, *, up: bool) -> float:
        """Return the end time of a copy queued at ``begin``. Each direction carries one copy at a time."""
        rate = self._nbytes_per_s[up]
        if rate is None:
            return begin
        begin = max(self._link_until[up], begin, time.monotonic())
        self._link_until[up] = begin + nbytes / rate
        return self._link_until[up]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lock the streams in a block, within which torch's operations don't become kernels."""
        with self._lock:
            before, self._thread.busy = self.is_busy, True
            try:
                yield
            finally:
                self._thread.busy = before

    @property
    def is_busy(self) -> bool:
        """Whether this thread is in an ``at_work`` block."""
        return getattr(self._thread, "busy", False)

    @property
    def current(self) -> SimulatedStream:
        """The current stream of this thread."""
        return getattr(self._thread, "stream", self._default)

    @current.setter
    def current(self, stream: SimulatedStream) -> None:
        self._thread.stream = stream

    def _allocate(self, name: str) -> None:
        """Count an allocation, and raise torch's out-of-memory error if it is ``refused``."""
        self.check()
        number = self.allocations[name]
        self.allocations[name] += 1
        if self.refused == (name, number):
            error = RuntimeError if name == "pinned" else torch.OutOfMemoryError
            raise error("simulated error: out of memory")


def _sleep_until(moment: float) -> None:
    """Sleep until ``moment``, but never for 0 s, because that would yield to another thread."""
    remaining_s = moment - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)
