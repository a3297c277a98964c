"""A device on the CPU that is as late as a device can be: for tests, and for experiments on a paced link.

Its tensors are CPU tensors that it owns. A copy or a kernel takes effect only when somebody waits for its
stream, never before, and until then the memory that it writes holds poison: bytes of ones, which are a NaN in
every float. So where a wait is missing the result is wrong in every run, not in one of a thousand.

torch's operations become kernels within ``Kernels``. Elsewhere they see the memory as it is. A *prompt*
device only paces copies: they take effect at once, and torch's operations run as they are.
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

from gradwire.devices import owners
from gradwire.devices.base import Device, Event, Stream, T
from gradwire_lab.simulated_device.operations import Copy, Operation, Range, Write, extent, launch

_owners: dict[int, tuple[Any, Simulated]] = {}
"""By the address of a storage, which no other one has as long as the weak reference is kept."""
_owning = threading.Lock()


def owner_of(tensor: torch.Tensor) -> Simulated | None:
    """Return the simulated device that owns the memory of a CPU tensor, if one does."""
    if not _owners or tensor.layout != torch.strided:
        return None
    found = _owners.get(tensor.untyped_storage()._cdata)
    return None if found is None or found[0].expired() else found[1]


owners.register(owner_of)


class _Wait(Operation):
    """A stream waits for what another one has to do first."""

    def __init__(self, event: SimulatedEvent) -> None:
        super().__init__()
        self._event = event

    def run(self) -> None:
        """Let the other stream come there."""
        self._event.reach()

    def before(self) -> set[Operation]:
        """Return the other stream's operations until then."""
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
        """Let the current stream wait; the host itself where that is what computes."""
        if self._stream.device.prompt:
            self.wait()
        elif self._stream.device.waits_here("order"):
            self._stream.device.current.wait_for(self)

    def reach(self) -> None:
        """Let the stream come here."""
        _sleep_until(self._place.until)
        self._stream.run(self._place)

    def before(self) -> set[Operation]:
        """Return the operations that remain until then."""
        return self._stream.before(self._place)

    @property
    def until(self) -> float:
        """The time at which all operations before are done."""
        return self._place.until


class SimulatedStream(Stream):
    """Operations that are done as late as possible, in their order."""

    def __init__(self, device: Simulated) -> None:
        self.device = device
        self._queue: deque[Operation] = deque()
        self._until = 0.0

    def queue_up(self, operation: Operation, until: float = 0.0) -> Operation:
        """Give the stream something to do that isn't done before ``until``."""
        with self.device.at_work():
            self._until = operation.until = max(self._until, time.monotonic(), until)
            self._queue.append(operation)
            if self.device.prompt:
                self.run()
            else:
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
        _sleep_until(self._until)

    def honour_waits(self) -> None:
        """Let other streams come as far as this one waits for, but do nothing else of what is queued."""
        while wait := next((each for each in self._queue if isinstance(each, _Wait)), None):
            self._queue.remove(wait)
            wait.run()

    def pending(self, *ranges: Range) -> list[Operation]:
        """Return the queued operations that touch any of these."""
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

    @property
    @contextmanager
    def current(self) -> Iterator[None]:
        """A block in which this thread's kernels are this stream's."""
        before, self.device.current = self.device.current, self
        try:
            yield
        finally:
            self.device.current = before

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
        self.device.check()
        with self.device.at_work():
            if self.pending(extent(tensor if up else host)):
                self.run()  # ordered before this copy, so poison must not come between
            operation = Copy(tensor, host, up=up)
            used = self.device.in_use(self, extent(tensor))
            operation.races = any(up or isinstance(each, Write) for each in used)
            if not self.device.prompt:
                operation.spoil()
            self.queue_up(operation, self.device.carry(tensor.nbytes, self._until, up=up))
            return SimulatedEvent(self)


class Simulated(Device):
    """A device of its own, without any of torch's.

    Parameters
    ----------
    nbytes_per_s
        How fast copies are, in each direction; None for no time at all. Kernels take no time.
    prompt
        Whether copies take effect when they are queued, and the host waits where the current stream must:
        torch's operations run without ``Kernels``, at full speed. A wait that is missing isn't found.
    without
        A wait that does nothing, to see that it is needed: its name (``follow``, ``wait``, ``order`` or
        ``complete``) and which one of that name, from 0 up.
    refused
        An allocation for which there is no memory: its name (``adopt``, ``zeros`` or ``pinned``) and which
        one of that name, from 0 up.

    Attributes
    ----------
    waits, allocations
        How many there were of each name; ``without`` and ``refused`` count by them.
    current
        The current stream: the same one for all threads, except within a stream's own ``current``.
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
        self._streams: dict[SimulatedStream, None] = {}  # those that have something to do
        self._default = self.stream()

    def __str__(self) -> str:
        return "a simulated device"

    def pace(self, nbytes_per_s: float | None, back_nbytes_per_s: float | None) -> None:
        """Let copies to the device, and those to the host, be so fast from now on."""
        self._nbytes_per_s = {True: nbytes_per_s, False: back_nbytes_per_s}

    def zeros(self, count: int) -> torch.Tensor:
        """Return this many zeros that this device owns."""
        self._allocate("zeros")
        return self.own(torch.zeros(count, dtype=torch.float32, device="cpu"))

    def pinned(self, count: int) -> torch.Tensor:
        """Return host memory."""
        self._allocate("pinned")
        return torch.empty(count, dtype=torch.float32, device="cpu")

    def stream(self) -> SimulatedStream:
        """Return a new stream."""
        return SimulatedStream(self)

    def launch(
        self, kernels: Callable[[], T], reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]
    ) -> T:
        """Run them now, and let what they write take effect later."""
        return launch(self, kernels, [*reads, *writes], writes)

    def event(self) -> SimulatedEvent:
        """Return the place where the current stream is."""
        return SimulatedEvent(self.current)

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
        self._allocate("adopt")
        for tensor in (*model.parameters(), *model.buffers()):
            self.own(tensor.data)
        return model

    def lose(self) -> None:
        """Be of no further use: what anybody does with this device raises ``RuntimeError``."""
        self._lost = True

    def check(self) -> None:
        """Raise ``RuntimeError`` if the device is lost."""
        if self._lost:
            raise RuntimeError("simulated error: the device is lost")

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
        self.check()
        with self._lock:
            number = self.waits[name]
            self.waits[name] += 1
        return self.without != (name, number)

    def in_use(self, stream: SimulatedStream, *memory: Range) -> list[Operation]:
        """Return other streams' operations on this memory that ``stream`` does not wait for."""
        before = stream.before()
        every = [each for other in self._streams if other is not stream for each in other.pending(*memory)]
        return [each for each in every if each not in before]

    def carry(self, nbytes: int, begin: float, *, up: bool) -> float:
        """Return when a copy that may begin at a time is done: a link carries one at a time each way."""
        rate = self._nbytes_per_s[up]
        if rate is None:
            return begin
        begin = max(self._link_until[up], begin, time.monotonic())
        self._link_until[up] = begin + nbytes / rate
        return self._link_until[up]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Be alone with the streams; torch's operations are no kernels meanwhile."""
        with self._lock:
            before, self._thread.busy = self.is_busy, True
            try:
                yield
            finally:
                self._thread.busy = before

    @property
    def is_busy(self) -> bool:
        """Whether this thread is at work on the streams."""
        return getattr(self._thread, "busy", False)

    @property
    def current(self) -> SimulatedStream:
        """The current stream of the thread that asks."""
        return getattr(self._thread, "stream", self._default)

    @current.setter
    def current(self, stream: SimulatedStream) -> None:
        self._thread.stream = stream

    def _allocate(self, name: str) -> None:
        """Count an allocation; raise what torch raises where there is no memory."""
        self.check()
        number = self.allocations[name]
        self.allocations[name] += 1
        if self.refused == (name, number):
            error = RuntimeError if name == "pinned" else torch.OutOfMemoryError
            raise error("simulated error: out of memory")


def _sleep_until(moment: float) -> None:
    """Sleep, but not for no time at all: that would let another thread take the interpreter."""
    remaining_s = moment - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)
