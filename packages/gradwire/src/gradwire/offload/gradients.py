"""The return of gradients from devices to the host, as soon as backward has accumulated them."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gradwire.devices import Event, Stream
from gradwire.errors import SpecError, TensorError
from gradwire.offload.layers import OffloadLedger
from gradwire.offload.replicas import DeviceEnd
from gradwire.offload.sums import GradientSums, LayerSteps


@dataclass
class _Origin:
    """The origin of a gradient: a parameter of a replica, and the master that receives the gradient."""

    master: nn.Parameter
    is_trained: bool  # whether the master required a gradient at the last check
    layer: str
    number: int  # the number of the end
    end: DeviceEnd
    stream: Stream


@dataclass
class _GradientCopy:
    """A copy of a gradient to the host, in flight."""

    origin: _Origin
    floats: torch.Tensor
    event: Event
    source: torch.Tensor  # referenced, so that its memory stays valid until the event


@dataclass(eq=False)
class _BackwardPass:
    """The state of a backward pass. Only autograd references the state, so a failed pass frees it."""

    ends: set[int] = field(default_factory=set)  # the numbers of ends with an accumulated gradient
    averaged: set[int] = field(default_factory=set)  # ends whose gradients DDP averages at the pass's end
    copies: list[_GradientCopy] = field(default_factory=list)  # copies that aren't delivered yet
    thread: int = field(default_factory=threading.get_ident)  # the thread that accumulated the first gradient
    stepping: bool = False
    stepped: set[str] = field(default_factory=set)  # the layers that were stepped in this pass


class GradientReturn:
    """The return of gradients from the replicas' ``grad`` to the masters' ``grad`` during ``backward``.

    When ``backward`` returns, the replicas' ``grad`` is None, and the gradients are added to the masters'
    ``grad``, in the order of the ends. If the pass fails, nothing is added. Threads may run backward and
    forward passes concurrently: each pass has its own state. With ``steps``, the optimizer steps a layer once
    all of its gradients have arrived, which sets the masters' ``grad`` to None.
    """

    def __init__(
        self, ends: Sequence[DeviceEnd], ledger: OffloadLedger, steps: LayerSteps | None = None
    ) -> None:
        self._origins: dict[torch.Tensor, _Origin] = {}
        for number, end in enumerate(ends):
            stream = end.device.stream()
            self._origins |= {
                replica: _Origin(master, master.requires_grad, layer.name, number, end, stream)
                for layer in end.layers
                for master, replica in zip(layer.masters, layer.replicas, strict=True)
            }
        self._sizes = self._count()
        self._probes = {origin.number: replica for replica, origin in self._origins.items()}  # to detect DDP
        self._steps, self._ledger, self.sums = steps, ledger, GradientSums(len(ends))
        self._lock = threading.Lock()
        self._passes = weakref.WeakValueDictionary[int, _BackwardPass]()  # running passes, by graph task id
        self._ddps: dict[int, DistributedDataParallel | None] = {}  # the module that wraps each end's replica
        self._drivers: dict[int, int] = {}  # the thread that ran each end's last forward pass
        self._maker = threading.get_ident()
        self._holders = Counter[int]()  # the threads within ``hold``, each with its nesting depth
        self._held: dict[torch.Tensor, int] = {}  # the parameters held on the device, with their ends
        self._hooks: dict[torch.Tensor, Any] = {}
        for replica, origin in self._origins.items():
            if origin.is_trained:
                self._hook(replica)

    def begin(self, number: int = 0) -> None:
        """Begin a forward pass at an end: record its thread, and whether DDP wraps the replica."""
        if torch._C._current_graph_task_id() != -1 or not torch.is_grad_enabled():
            return  # a forward pass within backward (activation checkpointing), or without a backward pass
        with self._lock:
            self._drivers[number] = threading.get_ident()
            self._follow(number)
        ddp, probe = getattr(DistributedDataParallel, "_active_ddp_module", None), self._probes.get(number)
        if ddp is None or ddp is not self._ddps.get(number):
            around = ddp is not None and any(each is probe for each in ddp.module.parameters())
            self._ddps[number] = ddp if around else None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Accumulate gradients on the device within the block, as ``HostOffload.no_sync`` describes.

        If the thread that made this object runs no replica, its blocks affect all replicas, because a thread
        may still be about to run its first replica.
        """
        thread = threading.get_ident()
        with self._lock:
            self._holders[thread] += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders[thread] -= 1
                self._holders += Counter()  # removes counts of 0

    def close(self) -> None:
        """Remove the hooks from the replicas."""
        for each in self._hooks.values():
            each.remove()

    def _hook(self, replica: torch.Tensor) -> None:
        register = torch.Tensor.register_post_accumulate_grad_hook
        self._hooks[replica] = register(replica, self._take)  # type: ignore[no-untyped-call]

    def _follow(self, number: int) -> None:
        """Freeze or unfreeze the parameters of an end's replica to match their masters."""
        changed = [
            (replica, origin)
            for replica, origin in self._origins.items()
            if origin.number == number and origin.is_trained is not origin.master.requires_grad
        ]
        for replica, origin in changed:
            origin.is_trained = origin.master.requires_grad
            replica.requires_grad_(origin.is_trained)
            if origin.is_trained and replica not in self._hooks:
                self._hook(replica)
        if changed:
            self._sizes = self._count()

    def _count(self) -> Counter[str]:
        """Return, for each layer, the number of gradients that return in a backward pass."""
        return Counter(origin.layer for origin in self._origins.values() if origin.is_trained)

    def _take(self, replica: torch.Tensor) -> None:
        """Copy an accumulated gradient to the host, unless it is held on the device or DDP averages it."""
        origin = self._origins[replica]
        # The inner pass of a reentrant checkpoint has its own id, but steps layers of the outer pass. If
        # layers are stepped, both passes therefore share the id 0.
        task = torch._C._current_graph_task_id() if self._steps is None else 0
        ddp = self._ddps.get(origin.number)
        with self._lock:  # backward has a thread for each accelerator
            backward = self._passes.get(task)
            begins = backward is None
            if backward is None:
                backward = self._passes[task] = _BackwardPass()
            backward.ends.add(origin.number)
            if ddp is not None and ddp.require_backward_grad_sync:
                backward.averaged.add(origin.number)
            held = self._is_held(origin.number)
            if held and ddp is None:
                self._held[replica] = origin.number
        if begins:
            _when_backward_ends(partial(self._end, task, backward))
        if not held and ddp is None:
            if self._steps is not None and backward.thread != threading.get_ident():
                raise SpecError(
                    "step_in_backward=True: expected backward passes from one thread at a time, got passes "
                    "from two threads; call backward() in one thread, or omit step_in_backward"
                )
            try:
                self._load(replica, backward)
            except BaseException:  # the error's traceback would keep this failed pass alive
                self._passes.pop(task, None)
                raise

    def _is_held(self, number: int) -> bool:
        if self._drivers.get(number) in self._holders:
            return True
        return self._maker in self._holders and self._maker not in self._drivers.values()

    def _load(self, replica: torch.Tensor, backward: _BackwardPass) -> None:
        if (gradient := replica.grad) is None:
            return
        if gradient.layout != torch.strided or gradient.dtype != torch.float32:
            raise TensorError(
                f"HostOffload: expected dense float32 gradients, got {gradient.layout} and "
                f"{gradient.dtype}; use Embedding(sparse=False), or torch.autocast instead of model.half()"
            )
        if self._steps is not None and not backward.stepping:
            self._steps.begin()
            backward.stepping = True
        origin = self._origins[replica]
        floats = origin.end.host_memory(gradient.numel())
        with origin.end.at_work("a copy of gradients"):
            origin.stream.follow()
            event = origin.stream.load(floats, gradient)
        backward.copies.append(_GradientCopy(origin, floats, event, gradient))
        with self._lock:
            self._held.pop(replica, None)
        self._ledger.returned(origin.layer, gradient.nbytes)
        replica.grad = None
        if self._steps is not None:
            self._step_layer(origin.layer, backward, self._steps)

    def _step_layer(self, layer: str, backward: _BackwardPass, steps: LayerSteps) -> None:
        if layer in backward.stepped:
            raise SpecError(
                "step_in_backward=True: expected each gradient once in a backward pass, got a gradient of "
                f"layer {layer!r} twice; use checkpoint(..., use_reentrant=False)"
            )
        whole = [each for each in backward.copies if each.origin.layer == layer]
        if len(whole) == self._sizes[layer]:
            backward.stepped.add(layer)
            backward.copies = [each for each in backward.copies if each.origin.layer != layer]
            steps.submit({each.origin.master for each in whole}, partial(self._deliver, whole))

    def _end(self, task: int, backward: _BackwardPass) -> None:
        """Finish the pass now, or, if DDP averages gradients, after DDP's already queued callback."""
        if backward.averaged:
            _when_backward_ends(partial(self._finish, task, backward))
        else:
            self._finish(task, backward)

    def _finish(self, task: int, backward: _BackwardPass) -> None:
        self._passes.pop(task, None)
        for replica in self._left(backward):
            self._load(replica, backward)
        with self._ledger.clocked("gradient_wait_s"):
            if self._steps is None:
                self._deliver(backward.copies)
            elif backward.stepping:
                masters = {each.origin.master for each in backward.copies}
                self._steps.submit(masters, partial(self._deliver, backward.copies))
                self._steps.join()

    def _left(self, backward: _BackwardPass) -> list[torch.Tensor]:
        """Return the parameters whose gradients aren't copied yet: DDP's averages, and held gradients."""
        with self._lock:
            ends = {each for each in backward.ends if not self._is_held(each)}
            averaged = backward.averaged & ends
            found = [each for each, origin in self._origins.items() if origin.number in averaged]
            return found + [each for each, number in self._held.items() if number in ends]

    def _deliver(self, copies: Sequence[_GradientCopy]) -> None:
        for each in copies:
            with each.origin.end.at_work("a copy of gradients"):
                each.event.wait()
        arrivals = [
            (each.origin.number, each.origin.master, each.floats.view(each.origin.master.shape))
            for each in copies
        ]
        self.sums.add(arrivals, {each.origin.number for each in copies})


def _when_backward_ends(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)
