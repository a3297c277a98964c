"""Weights on their way out: a thread packs a layer while the one before is copied and the model computes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import nn

from gradwire import _native
from gradwire._native import Pass
from gradwire.devices import Device, Event
from gradwire.training.offload.carriers import Carrier
from gradwire.training.offload.layers import Layer
from gradwire.training.offload.ledger import LayerCounts, OffloadLedger
from gradwire.training.offload.policies import Policy


class _Route:
    """A layer, what carries it, and where its last message is."""

    def __init__(self, layer: Layer, carrier: Carrier, bits_index: int | None) -> None:
        self.layer, self.carrier, self.bits_index = layer, carrier, bits_index
        self.packed: Future[Event] | None = None
        """While a message is on its way."""
        self.event: Event | None = None
        """When the last one's bytes had left the host."""


class Sender:
    """Sends layers to one device. All calls come from one thread.

    Parameters
    ----------
    layers
        In the order of the model's modules.
    timed
        Measure the seconds of copies, which a thread waits for.

    Attributes
    ----------
    bits
        Each layer's with weights, after the last send; None before.
    bits_by_batch
        Those of every batch that a policy observed, the state before the first batch included.
    """

    def __init__(
        self, layers: Sequence[Layer], policy: Policy, device: Device, ledger: OffloadLedger, *, timed: bool
    ) -> None:
        self._policy, self._ledger, self._timed = policy, ledger, timed
        self._stream = device.stream()
        self._weighted = [each for each in layers if each.weights]
        self._routes = [
            _Route(
                each,
                policy.carrier(each.masters, each.replicas, device),
                self._weighted.index(each) if each.weights else None,
            )
            for each in layers
        ]
        for each in layers:
            ledger.layers[each.name] = LayerCounts()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gradwire offload")
        self._last: Future[None] | None = None
        self.bits: list[int] | None = None
        self.bits_by_batch: list[list[int]] = []

    def send(self, order: Sequence[Layer], *, observe: bool, full: bool, only: Set[nn.Parameter]) -> None:
        """Begin to send the layers that hold any parameters of ``only``, in this order.

        The device has finished with what was sent before when it comes to these bytes.
        """
        self.arrive(order)
        self.join()
        self._stream.follow()
        observed = self._thread.submit(self._observe) if observe or self.bits is None else None
        routes = {id(each.layer): each for each in self._routes}
        chosen = [routes[id(each)] for each in order if not only.isdisjoint(each.masters)]
        started: list[float] = []
        for route in chosen:
            route.packed = self._thread.submit(self._pack, route, full, observed, started)
        jobs = [each.packed for each in chosen if each.packed is not None]
        self._last = self._thread.submit(self._finish, jobs, observed, started)

    def arrive(self, layers: Sequence[Layer]) -> None:
        """Let the current stream wait for these layers' weights, and unpack them; raise packing's errors."""
        for route in self._routes:
            if route.packed is not None and any(route.layer is each for each in layers):
                packed, route.packed = route.packed, None
                with self._clocked("exposed_s"):
                    event = packed.result()
                    if route.carrier.on_host:
                        event.wait()
                    else:
                        event.order()
                with self._clocked("unpack_s"), torch.no_grad():
                    route.carrier.unpack()

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
            route.packed = None

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def norms(self) -> list[float]:
        """Return the l2 norm of the weights of each layer that has any."""
        return [math.sqrt(math.fsum(map(_sum_of_squares, each.weights))) for each in self._weighted]

    def _observe(self) -> None:
        with self._clocked("norm_s"):
            norms = self.norms() if self._policy.wants_norms else [0.0] * len(self._weighted)
        self.bits = self._policy.observe(norms)
        self.bits_by_batch.append(self.bits)

    def _pack(self, route: _Route, full: bool, observed: Future[None] | None, started: list[float]) -> Event:
        if observed is not None:
            observed.result()  # it has ended, maybe by an error
        if route.event is not None:
            route.event.wait()  # the bytes before have left the memory that is filled now
        bits = 32 if route.bits_index is None or self.bits is None else self.bits[route.bits_index]
        carrier = route.carrier
        with self._clocked("pack_s"):
            nbytes = carrier.pack(bits, full=full)
        started.append(time.perf_counter())
        route.event = self._stream.store(carrier.on_device[:nbytes], carrier.host[:nbytes])
        self._ledger.sent(route.layer.name, nbytes, route.layer.count)
        return route.event

    def _finish(
        self, jobs: Sequence[Future[Event]], observed: Future[None] | None, started: Sequence[float]
    ) -> None:
        """Raise what any of these jobs raised."""
        if observed is not None:
            observed.result()
        events = [each.result() for each in jobs]
        if self._timed and started:
            for event in events:
                event.wait()
            self._ledger.transfer_s += time.perf_counter() - started[0]

    @contextmanager
    def _clocked(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self._ledger, name, getattr(self._ledger, name) + time.perf_counter() - begin)


def _sum_of_squares(master: torch.Tensor) -> float:
    flat = master.detach().reshape(-1)
    return _native.sum_norms(Pass.LOOK, flat, flat)
