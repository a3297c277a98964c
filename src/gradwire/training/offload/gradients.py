"""Gradients on their way back: each is copied to the host as soon as backward has accumulated it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gradwire.devices import Device, Event
from gradwire.errors import TensorError
from gradwire.training.offload.layers import Layer
from gradwire.training.offload.ledger import LayerCounts, OffloadLedger


@dataclass
class _Coming:
    """A copy under way; ``kept`` is what it reads."""

    master: nn.Parameter
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
    """

    def __init__(self, layers: Sequence[Layer], device: Device, ledger: OffloadLedger) -> None:
        self._homes: dict[torch.Tensor, tuple[nn.Parameter, LayerCounts]] = {
            replica: (master, ledger.layers[layer.name])
            for layer in layers
            for master, replica in zip(layer.masters, layer.replicas, strict=True)
            if replica.requires_grad
        }
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
        if self._queued:
            self._queued, self._coming = False, []
        self._ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)

    def close(self) -> None:
        """Let the replicas go."""
        for each in self._hooks:
            each.remove()

    def _take(self, replica: torch.Tensor) -> None:
        if self.held or (self._ddp is not None and not self._ddp.require_backward_grad_sync):
            return
        if not self._queued:
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
        master, row = self._homes[replica]
        self._coming.append(_Coming(master, floats, event, gradient))
        row.gradient_nbytes += gradient.nbytes
        replica.grad = None

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
        self._queued, self._coming = False, []
        for each in coming:
            each.event.wait()
            gradient = each.floats.view(each.master.shape)
            if each.master.grad is None:
                each.master.grad = gradient
            else:
                with torch.no_grad():
                    each.master.grad.add_(gradient)
        self._ledger.gradient_wait_s += time.perf_counter() - begin


def _when_backward_ends(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)
