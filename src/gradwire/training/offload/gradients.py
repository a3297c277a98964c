"""Gradients on their way back: each is copied to the host as soon as backward has accumulated it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gradwire.devices import Event, Stream
from gradwire.errors import SpecError, TensorError
from gradwire.training.offload.layer_steps import LayerSteps
from gradwire.training.offload.ledger import LayerCounts, OffloadLedger
from gradwire.training.offload.places import Place


@dataclass
class _Home:
    """Where a replica's gradient goes, and from where."""

    master: nn.Parameter
    layer: str
    row: LayerCounts
    number: int
    place: Place
    stream: Stream


@dataclass
class _Coming:
    """A copy to the host under way; ``kept`` is what it reads."""

    home: _Home
    floats: torch.Tensor
    event: Event
    kept: torch.Tensor


class GradientReturn:
    """Fills the masters' ``grad`` from the replicas'; when ``backward`` returns, all is there.

    A replica's ``grad`` is None then: what has come is in the master's, added to what was there before. What
    one backward pass brings from several places is added in their order. If it fails, nothing is added.

    Parameters
    ----------
    places
        Where the replicas live, with the layers whose gradients come to the host.
    steps
        Steps each layer when all of its gradients have come; the masters then have none any more.
    """

    def __init__(
        self, places: Sequence[Place], ledger: OffloadLedger, steps: LayerSteps | None = None
    ) -> None:
        self._homes: dict[torch.Tensor, _Home] = {}
        for number, place in enumerate(places):
            stream = place.device.stream()
            self._homes |= {
                replica: _Home(master, layer.name, ledger.layers[layer.name], number, place, stream)
                for layer in place.layers
                for master, replica in zip(layer.masters, layer.replicas, strict=True)
                if replica.requires_grad
            }
        self._sizes = Counter(home.layer for home in self._homes.values())
        self._steps, self._stepped = steps, set[str]()
        self._ledger, self._lock = ledger, threading.Lock()
        self._coming: list[_Coming] = []
        self._queued = False
        self._ddp: DistributedDataParallel | None = None
        self.held = False
        """Whether backward passes leave their gradients on the device, to be accumulated there."""
        register = torch.Tensor.register_post_accumulate_grad_hook
        self._hooks: list[Any] = [register(each, self._take) for each in self._homes]  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Begin a forward pass: forget a backward pass that has failed, and see whether DDP is around it."""
        if torch._C._current_graph_task_id() != -1:
            return  # backward computes a checkpoint's forward pass again
        if self._queued:
            self._queued, self._coming, self._stepped = False, [], set()
        self._ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)

    def close(self) -> None:
        """Let the replicas go."""
        for each in self._hooks:
            each.remove()

    def _take(self, replica: torch.Tensor) -> None:
        if self.held or (self._ddp is not None and not self._ddp.require_backward_grad_sync):
            return
        with self._lock:  # each accelerator has a thread of backward's
            begins, self._queued = not self._queued, True
        if begins:
            if self._steps is not None:
                self._steps.begin()
            _when_backward_ends(self._end if self._ddp is None else self._end_after_ddp)
        if self._ddp is None:
            self._load(replica)

    def _load(self, replica: torch.Tensor) -> None:
        gradient = replica.grad
        if gradient is None:
            return
        if gradient.layout != torch.strided or gradient.dtype != torch.float32:
            raise TensorError(
                f"HostOffload takes dense float32 gradients, but one is {gradient.layout} and "
                f"{gradient.dtype}; use Embedding(sparse=False), or torch.autocast instead of model.half()"
            )
        home = self._homes[replica]
        floats = home.place.host_memory(gradient.numel())
        with home.place.at_work("a copy of gradients"):
            home.stream.follow()
            event = home.stream.load(floats, gradient)
        self._coming.append(_Coming(home, floats, event, gradient))
        home.row.gradient_nbytes += gradient.nbytes
        replica.grad = None
        if self._steps is not None:
            self._step_layer(home.layer, self._steps)

    def _step_layer(self, layer: str, steps: LayerSteps) -> None:
        """Step a layer where all of it has come."""
        if layer in self._stepped:
            raise SpecError(
                "step_in_backward=True wants each gradient once in a backward pass, but a second one of "
                f"{layer!r} came; use checkpoint(..., use_reentrant=False)"
            )
        whole = [each for each in self._coming if each.home.layer == layer]
        if len(whole) == self._sizes[layer]:
            self._stepped.add(layer)
            self._coming = [each for each in self._coming if each.home.layer != layer]
            steps.submit({each.home.master for each in whole}, partial(_deliver, whole))

    def _end_after_ddp(self) -> None:
        """Take the averages behind DDP's own end, which is in the queue by now."""
        _when_backward_ends(self._end_with_all)

    def _end_with_all(self) -> None:
        for replica in self._homes:
            self._load(replica)
        self._end()

    def _end(self) -> None:
        """Wait for the copies, and add them to the masters' gradients."""
        begin, coming = time.perf_counter(), self._coming
        self._queued, self._coming, self._stepped = False, [], set()
        if self._steps is None:
            _deliver(coming)
        else:
            self._steps.submit({each.home.master for each in coming}, partial(_deliver, coming))
            self._steps.join()
        self._ledger.gradient_wait_s += time.perf_counter() - begin


def _deliver(coming: Sequence[_Coming]) -> None:
    for each in coming:
        with each.home.place.at_work("a copy of gradients"):
            each.event.wait()
    for each in sorted(coming, key=lambda each: each.home.number):
        master = each.home.master
        gradient = each.floats.view(master.shape)
        if master.grad is None:
            master.grad = gradient
        else:
            with torch.no_grad():
                master.grad.add_(gradient)


def _when_backward_ends(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)
