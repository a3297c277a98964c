"""Weights on their way out: a thread packs layers while those before are copied and the model computes.

Each message costs the threads a hand-over, and the interpreter, the same however small it is. So consecutive
small layers travel in one. A policy that wants norms chooses bits layer by layer, and a message leaves as
soon as those of its layers are known.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

from torch import nn

from gradwire.devices import Event
from gradwire.errors import SpecError
from gradwire.offload.carriers import Bits, Carrier, End, Transfer
from gradwire.offload.inboxes import Inbox, Message, packing_thread
from gradwire.offload.layers import Layer, Place
from gradwire.offload.ledger import LayerCounts, OffloadLedger
from gradwire.offload.policies import Policy

_TOGETHER_NBYTES = 1 << 20
"""How large the masters of layers that travel together are at most, so that a pipeline has many parts."""


class _Part(NamedTuple):
    """A layer of a route, the numbers of its masters there, and where its bits are, if it has weights."""

    layer: Layer
    numbers: range
    bits_index: int | None


class _Route:
    """Layers, what carries them, and an inbox at each place."""

    def __init__(self, parts: Sequence[_Part], carrier: Carrier, inboxes: Sequence[Inbox]) -> None:
        self.parts, self.carrier, self.inboxes = parts, carrier, inboxes
        self.events: list[Event] = []
        """When the last one's bytes had left the host, for each place."""


class _Job(NamedTuple):
    """A message: its route, those parts that it brings, and what says when it has left for each place."""

    route: _Route
    parts: Sequence[_Part]
    packed: Future[list[Event]]


_Decoding = tuple[_Route, int, Future[list[Event]], Future[None]]
"""A message that the host decodes for a place: when it is packed, and when it is decoded."""

Packing = dict[_Route, tuple[Bits, int]]
"""Of messages that are packed already, the bits and the bytes."""


class Sender:
    """Sends layers to all places, packed once.

    Any thread may call ``arrive`` at any time. The other calls come from one thread at a time.

    Parameters
    ----------
    places
        Their layers are in the order of the model's modules.
    timed
        Measure the seconds of copies, which a thread waits for.
    threads, numa
        How many threads compute norms and pack, and the NUMA node on which they run.

    Attributes
    ----------
    bits
        Each layer's with weights, after the last send; None before.
    bits_by_batch
        Those of every batch that a policy observed, the state before the first batch included.
    """

    def __init__(
        self,
        places: Sequence[Place],
        policy: Policy,
        ledger: OffloadLedger,
        *,
        timed: bool = False,
        threads: int | None = None,
        numa: int | None = None,
    ) -> None:
        self._places, self._policy, self._ledger, self._timed = places, policy, ledger, timed
        first = places[0].layers
        self._weighted = [each for each in first if each.weights]
        self._streams = [each.device.stream() for each in places]
        together = _split([each.count for each in first], _TOGETHER_NBYTES)
        self._routes = [self._route(numbers) for numbers in together]
        parts = [(route, part) for route in self._routes for part in route.parts]
        self._way_of = {
            id(layer): (route, part, route.inboxes[place])
            for place, each in enumerate(places)
            for (route, part), layer in zip(parts, each.layers, strict=True)
        }
        for each in first:
            ledger.layers[each.name] = LayerCounts()
        self._thread = packing_thread(threads, numa)
        self._receiver = ThreadPoolExecutor(1, thread_name_prefix="gradwire offload receiver")
        self._last: Future[None] | None = None
        self._began_s = 0.0
        self.bits: list[int] | None = None
        self.bits_by_batch: list[list[int]] = []

    def send(self, order: Sequence[Layer], *, observe: bool, full: bool, only: Set[nn.Parameter]) -> None:
        """Begin to send the layers that hold any parameters of ``only``, in this order.

        Devices have finished with what was sent before when they come to these bytes. If it is to be sent in
        ``full``, nothing waits for what is on its way: all layers with such parameters are sent again.
        """
        if full:
            self.give_up()
        else:
            for place in self._places:
                self.arrive(place.layers)
            self.join()
        chosen = dict[_Route, list[_Part]]()
        for each in order:
            if not only.isdisjoint(each.masters):
                route, part, _ = self._way_of[id(each)]
                chosen.setdefault(route, []).append(part)
        jobs = [_Job(route, parts, Future()) for route, parts in chosen.items()]
        coming: list[_Decoding] = [
            (route, place, packed, Future[None]())
            for route, _, packed in jobs
            for place in range(len(self._places))
            if route.carrier.on_host(place)
        ]
        try:
            self._start(jobs, coming)
            if coming:
                self._receiver.submit(self._receive_all, coming)
            # One job for all messages: a hand-over to a thread takes longer than to pack a small message.
            self._last = self._thread.submit(self._pack_all, jobs, full, observe or self.bits is None)
        except BaseException as error:  # threads may wait for these messages already
            futures: list[Future[Any]] = [job.packed for job in jobs]
            for future in futures + [received for *_, received in coming]:
                with suppress(InvalidStateError):
                    future.set_exception(error)
            raise

    def _start(self, jobs: Sequence[_Job], coming: Sequence[_Decoding]) -> None:
        """Let threads that drive replicas wait for these messages, and copies for what reads those before."""
        received = {(route, place): each for route, place, _, each in coming}
        for route, _, packed in jobs:
            for place, inbox in enumerate(route.inboxes):
                inbox.expect(Message(packed, received.get((route, place))))
        for number, stream in enumerate(self._streams):
            with self._at_work(number):
                stream.follow()

    def arrive(self, layers: Sequence[Layer]) -> None:
        """Let the current stream wait for these layers' weights, and unpack them; raise packing's errors."""
        for layer in layers:
            way = self._way_of.get(id(layer))
            if way is not None:
                way[-1].arrive()

    def join(self) -> None:
        """Wait until the masters are read, and may change. Raises what packing raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def give_up(self) -> None:
        """Wait for what is on its way. Its errors are raised where it arrives; send it again in full."""
        last, self._last = self._last, None
        if last is not None:
            last.exception()
        for route in self._routes:
            for inbox in route.inboxes:
                inbox.settle()

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown()
        self._receiver.shutdown()

    def _observe(self, left: deque[_Job], full: bool) -> Packing:
        """Choose bits; return what was packed meanwhile, in the bits of before, of the messages to send.

        Those whose bits are known leave in their order, and are not ``left`` then. The last one waits for all
        norms, so that whoever waits for it learns if the policy refuses them. An error of those that leave is
        raised after the policy has seen the norms, which it counts.
        """
        before, packed, norms = self.bits, Packing(), [0.0] * len(self._weighted)
        foretold, failure = dict[int, int](), None
        jobs = {job.route: job for job in left}
        every = (*jobs, *(route for route in self._routes if route not in jobs))
        for route in every if self._policy.wants_norms else ():
            weighted = [(place, numbers) for _, numbers, place in route.parts if place is not None]
            brought = jobs[route].parts if route in jobs else ()
            wanted = {each.bits_index for each in brought if each.bits_index is not None}
            told = dict[int, int]()
            if weighted:
                bits = self._bits(brought) if before is not None and brought else None
                if bits is not None:
                    self._empty(route)
                with self._packing("norm_s"):
                    squares, nbytes = route.carrier.look(bits)
                for place, numbers in weighted:
                    norms[place] = math.sqrt(math.fsum(squares[each] for each in numbers if each in squares))
                if bits is not None and before is not None and nbytes is not None:
                    packed[route] = bits, nbytes
                    ahead = {place: self._policy.bits_for(place, norms[place]) for place in wanted}
                    told = {place: given for place, given in ahead.items() if given == before[place]}
            if len(told) == len(wanted) and failure is None and len(left) > 1 and left[0].route is route:
                try:
                    self._send_next(left, packed, full)
                except BaseException as error:
                    failure = error
                foretold |= told
        self.bits = self._policy.observe(norms)
        self.bits_by_batch.append(self.bits)
        if failure is not None:
            raise failure
        for layer, given in foretold.items():
            if self.bits[layer] != given:
                raise SpecError(
                    f"{type(self._policy).__name__}.bits_for foretold {given} bits for layer {layer}, but "
                    f"observe gave it {self.bits[layer]}; let both say the same, or bits_for None"
                )
        return packed

    def _bits(self, parts: Sequence[_Part]) -> Bits:
        """Return those of the masters of these parts."""
        found = dict[int, int]()
        for _, numbers, place in parts:
            found |= dict.fromkeys(numbers, 32 if place is None or self.bits is None else self.bits[place])
        return found

    def _route(self, numbers: range) -> _Route:
        """Return a route for the layers of these numbers."""
        here, parts, masters = self._places[0], list[_Part](), list[nn.Parameter]()
        for layer in here.layers[numbers.start : numbers.stop]:
            place = self._weighted.index(layer) if layer.weights else None
            parts.append(_Part(layer, range(len(masters), len(masters) + len(layer.masters)), place))
            masters += layer.masters
        ends = [
            End([own for number in numbers for own in each.layers[number].replicas], each.device)
            for each in self._places
        ]
        with here.at_work("the buffers of the weights"):
            carrier = self._policy.carrier(Transfer(masters, ends, here.host_memory))
        inboxes = [Inbox(carrier, end, place, self._ledger) for end, place in enumerate(self._places)]
        return _Route(parts, carrier, inboxes)

    def _at_work(self, place: int) -> AbstractContextManager[None]:
        return self._places[place].at_work("a copy of weights")

    def _empty(self, route: _Route) -> None:
        """Wait until the bytes before have left the memory that is filled now."""
        for place, event in enumerate(route.events):
            with self._at_work(place):
                event.wait()

    def _pack_all(self, jobs: Sequence[_Job], full: bool, observes: bool) -> None:
        """Pack and send messages; after an error, those that are left have it, too."""
        left = deque(jobs)
        self._began_s = 0.0
        try:
            packed = self._observe(left, full) if observes else Packing()
            while left:
                self._send_next(left, packed, full)
            if self._timed and jobs:
                for event in (event for each in jobs for event in each.route.events):
                    event.wait()
                self._ledger.spent("transfer_s", time.perf_counter() - self._began_s)
        except BaseException as error:
            for each in left:
                each.packed.set_exception(error)
            raise

    def _send_next(self, left: deque[_Job], packed: Packing, full: bool) -> None:
        """Send the first message of those that are left."""
        job, route = left[0], left[0].route
        nbytes = self._pack(job, packed.get(route), full)
        self._began_s = self._began_s or time.perf_counter()
        route.events = [self._store(job, place, nbytes) for place in range(len(self._places))]
        job.packed.set_result(route.events)
        left.popleft()

    def _pack(self, job: _Job, packed: tuple[Bits, int] | None, full: bool) -> int:
        bits, (packed_bits, nbytes) = self._bits(job.parts), packed or (None, 0)
        if packed_bits != bits:
            self._empty(job.route)
            with self._packing("pack_s"):
                nbytes = job.route.carrier.pack(bits, full=full)
        return nbytes

    def _receive_all(self, coming: Sequence[_Decoding]) -> None:
        """Decode beside the training thread, which may be busy with the layer before."""
        for route, place, packed, received in coming:
            try:
                event = packed.result()[place]
                with self._at_work(place):
                    event.wait()
                with self._ledger.clocked("decode_s"):
                    route.carrier.receive(place)
                received.set_result(None)
            except BaseException as error:  # the training thread raises it
                received.set_exception(error)

    def _store(self, job: _Job, place: int, nbytes: int) -> Event:
        carrier = job.route.carrier
        with self._at_work(place):
            event = self._streams[place].store(carrier.on_device[place][:nbytes], carrier.host[:nbytes])
        for layer, numbers, _ in job.parts:
            spans = [carrier.spans[number] for number in numbers]
            self._ledger.sent(layer.name, sum(end - begin for begin, end in spans), layer.count)
        return event

    @contextmanager
    def _packing(self, name: str) -> Iterator[None]:
        begin = time.thread_time()
        try:
            with self._ledger.clocked(name):
                yield
        finally:
            self._ledger.spent("packing_cpu_s", time.thread_time() - begin)


def _split(counts: Sequence[int], nbytes: int) -> Iterator[range]:
    """Yield ranges of consecutive layers, of at most so many bytes of float32 in all, or of one layer."""
    begin, held = 0, 0
    for number, count in enumerate(counts):
        if number > begin and held + 4 * count > nbytes:
            yield range(begin, number)
            begin, held = number, 0
        held += 4 * count
    if counts:
        yield range(begin, len(counts))
