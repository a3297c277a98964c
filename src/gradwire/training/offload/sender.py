"""Weights on their way out: a thread packs a layer while the one before is copied and the model computes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from gradwire.devices import Event
from gradwire.training.offload.carriers import Carrier, End, Transfer
from gradwire.training.offload.layers import Layer
from gradwire.training.offload.ledger import LayerCounts, OffloadLedger
from gradwire.training.offload.places import Place
from gradwire.training.offload.policies import Policy
from gradwire.training.offload.workers import packing_thread


class _Route:
    """A layer, what carries it, and where its last message is."""

    def __init__(self, layer: Layer, carrier: Carrier, bits_index: int | None) -> None:
        self.layer, self.carrier, self.bits_index = layer, carrier, bits_index
        self.packed: Future[list[Event]] | None = None
        """The last message, from when it is to be packed."""
        self.awaited = set[int]()
        """The places where it hasn't been unpacked."""
        self.received: dict[int, Future[None]] = {}
        """Of those, the places where the host decodes it."""
        self.events: list[Event] = []
        """When the last one's bytes had left the host, for each place."""


Packing = dict[_Route, tuple[int, int]]
"""Of layers that are packed already, the bits and the bytes."""


class Sender:
    """Sends layers to all places, packed once. All calls come from one thread.

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
        self._routes = [
            _Route(
                each,
                self._carrier(number),
                self._weighted.index(each) if each.weights else None,
            )
            for number, each in enumerate(first)
        ]
        self._route_of = {
            id(layer): (route, place)
            for place, each in enumerate(places)
            for route, layer in zip(self._routes, each.layers, strict=True)
        }
        for each in first:
            ledger.layers[each.name] = LayerCounts()
        self._thread = packing_thread(threads, numa)
        self._receiver = ThreadPoolExecutor(1, thread_name_prefix="gradwire offload receiver")
        self._last: Future[None] | None = None
        self.bits: list[int] | None = None
        self.bits_by_batch: list[list[int]] = []

    def send(self, order: Sequence[Layer], *, observe: bool, full: bool, only: Set[nn.Parameter]) -> None:
        """Begin to send the layers that hold any parameters of ``only``, in this order.

        Devices have finished with what was sent before when they come to these bytes.
        """
        for place in self._places:
            self.arrive(place.layers)
        self.join()
        for number, stream in enumerate(self._streams):
            with self._at_work(number):
                stream.follow()
        chosen = [self._route_of[id(each)][0] for each in order if not only.isdisjoint(each.masters)]
        observed = self._thread.submit(self._observe, chosen) if observe or self.bits is None else None
        started: list[float] = []
        for route in chosen:
            route.awaited = {*range(len(self._places))}
            route.packed = self._thread.submit(self._pack, route, full, observed, started)
            route.received = {
                place: self._receiver.submit(self._receive, route, place, route.packed)
                for place in route.awaited
                if route.carrier.on_host(place)
            }
        jobs = [each.packed for each in chosen if each.packed is not None]
        self._last = self._thread.submit(self._finish, jobs, observed, started)

    def arrive(self, layers: Sequence[Layer]) -> None:
        """Let the current stream wait for these layers' weights, and unpack them; raise packing's errors."""
        for layer in layers:
            route, place = self._route_of.get(id(layer), (None, 0))
            if route is None or route.packed is None or place not in route.awaited:
                continue
            route.awaited.remove(place)
            with self._clocked("exposed_s"):
                event = route.packed.result()[place]
                if place in route.received:
                    route.received.pop(place).result()
                else:
                    with self._at_work(place):
                        event.order()
            with self._at_work(place), self._clocked("unpack_s"), torch.no_grad():
                route.carrier.unpack(place)

    def join(self) -> None:
        """Wait until the masters are read, and may change. Raises what packing raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def give_up(self) -> None:
        """Forget what is on its way; what is sent next must be sent in full."""
        if self._last is not None:
            self._last.exception()
        self._last = None
        for route in self._routes:
            for each in route.received.values():
                each.exception()
            route.packed, route.awaited, route.received = None, set(), {}

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown()
        self._receiver.shutdown()

    def _observe(self, chosen: Sequence[_Route]) -> Packing:
        """Choose bits; return what was packed meanwhile, in the bits of before, of the chosen layers."""
        before, packed, norms = self.bits, Packing(), [0.0] * len(self._weighted)
        for route in self._routes if self._policy.wants_norms else ():
            place = route.bits_index
            if place is None:
                continue
            bits = before[place] if before is not None and route in chosen else None
            if bits is not None:
                self._empty(route)
            with self._packing("norm_s"):
                norms[place], nbytes = route.carrier.look(bits)
            if bits is not None and nbytes is not None:
                packed[route] = bits, nbytes
        self.bits = self._policy.observe(norms)
        self.bits_by_batch.append(self.bits)
        return packed

    def _carrier(self, number: int) -> Carrier:
        layers, here = [each.layers[number] for each in self._places], self._places[0]
        ends = [End(layer.replicas, each.device) for layer, each in zip(layers, self._places, strict=True)]
        with here.at_work("the buffers of the weights"):
            return self._policy.carrier(Transfer(layers[0].masters, ends, here.host_memory))

    def _at_work(self, place: int) -> AbstractContextManager[None]:
        return self._places[place].at_work("a copy of weights")

    def _empty(self, route: _Route) -> None:
        """Wait until the bytes before have left the memory that is filled now."""
        for place, event in enumerate(route.events):
            with self._at_work(place):
                event.wait()

    def _pack(
        self, route: _Route, full: bool, observed: Future[Packing] | None, started: list[float]
    ) -> list[Event]:
        packed = Packing() if observed is None else observed.result()  # it has ended, maybe by an error
        bits = 32 if route.bits_index is None or self.bits is None else self.bits[route.bits_index]
        packed_bits, nbytes = packed.get(route, (None, 0))
        if packed_bits != bits:
            self._empty(route)
            with self._packing("pack_s"):
                nbytes = route.carrier.pack(bits, full=full)
        started.append(time.perf_counter())
        route.events = [self._store(route, place, nbytes) for place in range(len(self._places))]
        return route.events

    def _receive(self, route: _Route, place: int, packed: Future[list[Event]]) -> None:
        """Decode beside the training thread, which may be busy with the layer before."""
        event = packed.result()[place]
        with self._at_work(place):
            event.wait()
        with self._clocked("decode_s"):
            route.carrier.receive(place)

    def _store(self, route: _Route, place: int, nbytes: int) -> Event:
        carrier = route.carrier
        with self._at_work(place):
            event = self._streams[place].store(carrier.on_device[place][:nbytes], carrier.host[:nbytes])
        self._ledger.sent(route.layer.name, nbytes, route.layer.count)
        return event

    def _finish(
        self, jobs: Sequence[Future[list[Event]]], observed: Future[Packing] | None, started: Sequence[float]
    ) -> None:
        """Raise what any of these jobs raised."""
        if observed is not None:
            observed.result()
        events = [event for each in jobs for event in each.result()]
        if self._timed and started:
            for event in events:
                event.wait()
            self._ledger.transfer_s += time.perf_counter() - started[0]

    @contextmanager
    def _packing(self, name: str) -> Iterator[None]:
        begin = time.thread_time()
        try:
            with self._clocked(name):
                yield
        finally:
            self._ledger.packing_cpu_s += time.thread_time() - begin

    @contextmanager
    def _clocked(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self._ledger, name, getattr(self._ledger, name) + time.perf_counter() - begin)
