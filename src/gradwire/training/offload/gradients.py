"""Gradients on their way back: each is copied to the host as soon as backward has accumulated it."""

from __future__ import annotations

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

from gradwire.devices import Device, Event
from gradwire.errors import SpecError, TensorError
from gradwire.training.offload.layer_steps import LayerSteps
from gradwire.training.offload.layers import Layer
from gradwire.training.offload.ledger import LayerCounts, OffloadLedger


@dataclass
class _Home:
    """Where a replica's gradient goes."""

    master: nn.Parameter
    layer: str
    row: LayerCounts


@dataclass
class _Coming:
    """A copy under way; ``kept`` is what it reads."""

    home: _Home
    floats: torch.Tensor
    event: Event
    kept: torch.Tensor


class GradientReturn:
    """Fills the masters' ``grad`` from the replicas'; when ``backward`` returns, all is there.

    A replica's ``grad`` is None then: what has come is in the master's, added to what was there before.

    Parameters
    ----------
    layers
        Whose gradients they are.
    device
        Where the replicas live.
    steps
        Steps each layer when all of its gradients have come; the masters then have none any more.
    """

    def __init__(
        self, layers: Sequence[Layer], device: Device, ledger: OffloadLedger, steps: LayerSteps | None = None
    ) -> None:
        self._homes: dict[torch.Tensor, _Home] = {
            replica: _Home(master, layer.name, ledger.layers[layer.name])
            for layer in layers
            for master, replica in zip(layer.masters, layer.replicas, strict=True)
            if replica.requires_grad
        }
        self._sizes = Counter(home.layer for home in self._homes.values())
        self._steps, self._stepped = steps, set[str]()
        self._device, self._ledger = device, ledger
        self._stream = device.stream()
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
        if not self._queued:
            if self._steps is not None:
                self._steps.begin()
            self._queued = True
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
        self._stream.follow()
        floats = self._device.pinned(gradient.numel())
        event = self._stream.load(floats, gradient)
        home = self._homes[replica]
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
        each.event.wait()
        master = each.home.master
        gradient = each.floats.view(master.shape)
        if master.grad is None:
            master.grad = gradient
        else:
            with torch.no_grad():
                master.grad.add_(gradient)


def _when_backward_ends(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)
