"""Gradients on their way back: each is copied to the host as soon as backward has accumulated it."""

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
from gradwire.offload.layers import Place
from gradwire.offload.ledger import OffloadLedger
from gradwire.offload.sums import GradientSums, LayerSteps


@dataclass
class _Home:
    """Where a replica's gradient goes, and from where.

    ``is_trained`` says whether the master required a gradient when that was last looked at.
    """

    master: nn.Parameter
    is_trained: bool
    layer: str
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


@dataclass(eq=False)
class _Pass:
    """A backward pass. Only autograd refers to it all the time, so that it is gone if the pass fails.

    Attributes
    ----------
    places
        The numbers of the places of which a gradient was accumulated.
    averaged
        Of those, the ones whose gradients DDP averages when the pass ends.
    coming
        The copies that aren't delivered yet.
    thread
        The one that accumulated the first gradient.
    stepping, stepped
        Whether layers are stepped in this pass, and which ones were.
    """

    places: set[int] = field(default_factory=set)
    averaged: set[int] = field(default_factory=set)
    coming: list[_Coming] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)
    stepping: bool = False
    stepped: set[str] = field(default_factory=set)


class GradientReturn:
    """Fills the masters' ``grad`` from the replicas'; when ``backward`` returns, all is there.

    A replica's ``grad`` is None then: what has come is in the master's, added to what was there before. What
    one backward pass brings from several places is added in their order. If it fails, nothing is added.
    Threads may run backward passes, and forward passes beside them: each pass has a state of its own.

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
                replica: _Home(master, master.requires_grad, layer.name, number, place, stream)
                for layer in place.layers
                for master, replica in zip(layer.masters, layer.replicas, strict=True)
            }
        self._sizes = self._count()
        self._probes = {home.number: replica for replica, home in self._homes.items()}
        """A parameter of each place."""
        self._steps, self._ledger, self._sums = steps, ledger, GradientSums(len(places))
        self._lock = threading.Lock()
        self._passes = weakref.WeakValueDictionary[int, _Pass]()
        """The backward passes under way, by autograd's number."""
        self._ddps: dict[int, DistributedDataParallel | None] = {}
        """What is around the replica of a place."""
        self._drivers: dict[int, int] = {}
        """The thread of a place's last forward pass."""
        self._maker = threading.get_ident()
        self._holders = Counter[int]()
        """The threads within ``hold``."""
        self._held: dict[torch.Tensor, int] = {}
        """The parameters whose gradients stay on the device meanwhile, and their places."""
        self._hooks: dict[torch.Tensor, Any] = {}
        for replica, home in self._homes.items():
            if home.is_trained:
                self._hook(replica)

    def begin(self, number: int = 0) -> None:
        """Begin a forward pass at a place: note the thread that drives it, and whether DDP is around it."""
        if torch._C._current_graph_task_id() != -1 or not torch.is_grad_enabled():
            return  # backward computes a checkpoint's forward pass again, or no backward pass follows
        with self._lock:
            self._drivers[number] = threading.get_ident()
            self._follow(number)
        ddp, probe = getattr(DistributedDataParallel, "_active_ddp_module", None), self._probes.get(number)
        if ddp is None or ddp is not self._ddps.get(number):
            around = ddp is not None and any(each is probe for each in ddp.module.parameters())
            self._ddps[number] = ddp if around else None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let gradients stay on a device, to be accumulated there; its next pass after the block brings them.

        A block holds the gradients of what its thread drives. If the thread that has made this drives
        nothing, its blocks hold those of all; another thread may only be about to drive something.
        """
        thread = threading.get_ident()
        with self._lock:
            self._holders[thread] += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders[thread] -= 1
                self._holders += Counter()  # without those that are 0

    def stepped(self) -> None:
        """Note that the optimizer has stepped."""
        self._sums.end_round()

    def close(self) -> None:
        """Let the replicas go."""
        for each in self._hooks.values():
            each.remove()

    def _hook(self, replica: torch.Tensor) -> None:
        register = torch.Tensor.register_post_accumulate_grad_hook
        self._hooks[replica] = register(replica, self._take)  # type: ignore[no-untyped-call]

    def _follow(self, number: int) -> None:
        """Freeze and unfreeze a replica's parameters as the user has done with the masters."""
        changed = [
            (replica, home)
            for replica, home in self._homes.items()
            if home.number == number and home.is_trained is not home.master.requires_grad
        ]
        for replica, home in changed:
            home.is_trained = home.master.requires_grad
            replica.requires_grad_(home.is_trained)
            if home.is_trained and replica not in self._hooks:
                self._hook(replica)
        if changed:
            self._sizes = self._count()

    def _count(self) -> Counter[str]:
        """Return how many gradients come of each layer."""
        return Counter(home.layer for home in self._homes.values() if home.is_trained)

    def _take(self, replica: torch.Tensor) -> None:
        home = self._homes[replica]
        # A reentrant checkpoint's pass within another one has its own number, and steps the other's layers.
        task = torch._C._current_graph_task_id() if self._steps is None else 0
        ddp = self._ddps.get(home.number)
        with self._lock:  # each accelerator has a thread of backward's
            own = self._passes.get(task)
            begins = own is None
            if own is None:
                own = self._passes[task] = _Pass()
            own.places.add(home.number)
            if ddp is not None and ddp.require_backward_grad_sync:
                own.averaged.add(home.number)
            held = self._is_held(home.number)
            if held and ddp is None:
                self._held[replica] = home.number
        if begins:
            _when_backward_ends(partial(self._end, task, own))
        if not held and ddp is None:
            if self._steps is not None:
                _check_thread(own)
            try:
                self._load(replica, own)
            except BaseException:  # whose traceback keeps this pass, which has failed
                self._passes.pop(task, None)
                raise

    def _is_held(self, number: int) -> bool:
        if self._drivers.get(number) in self._holders:
            return True
        return self._maker in self._holders and self._maker not in self._drivers.values()

    def _load(self, replica: torch.Tensor, own: _Pass) -> None:
        gradient = replica.grad
        if gradient is None:
            return
        if gradient.layout != torch.strided or gradient.dtype != torch.float32:
            raise TensorError(
                f"HostOffload takes dense float32 gradients, but one is {gradient.layout} and "
                f"{gradient.dtype}; use Embedding(sparse=False), or torch.autocast instead of model.half()"
            )
        if self._steps is not None and not own.stepping:
            self._steps.begin()
            own.stepping = True
        home = self._homes[replica]
        floats = home.place.host_memory(gradient.numel())
        with home.place.at_work("a copy of gradients"):
            home.stream.follow()
            event = home.stream.load(floats, gradient)
        own.coming.append(_Coming(home, floats, event, gradient))
        with self._lock:
            self._held.pop(replica, None)
        self._ledger.returned(home.layer, gradient.nbytes)
        replica.grad = None
        if self._steps is not None:
            self._step_layer(home.layer, own, self._steps)

    def _step_layer(self, layer: str, own: _Pass, steps: LayerSteps) -> None:
        """Step a layer where all of it has come."""
        if layer in own.stepped:
            raise SpecError(
                "step_in_backward=True wants each gradient once in a backward pass, but a second one of "
                f"{layer!r} came; use checkpoint(..., use_reentrant=False)"
            )
        whole = [each for each in own.coming if each.home.layer == layer]
        if len(whole) == self._sizes[layer]:
            own.stepped.add(layer)
            own.coming = [each for each in own.coming if each.home.layer != layer]
            steps.submit({each.home.master for each in whole}, partial(self._deliver, whole))

    def _end(self, task: int, own: _Pass) -> None:
        """Take the averages behind DDP's own end, which is in the queue by now."""
        if own.averaged:
            _when_backward_ends(partial(self._finish, task, own))
        else:
            self._finish(task, own)

    def _finish(self, task: int, own: _Pass) -> None:
        """Wait for the copies, and add them to the masters' gradients."""
        self._passes.pop(task, None)
        for replica in self._left(own):
            self._load(replica, own)
        with self._ledger.clocked("gradient_wait_s"):
            if self._steps is None:
                self._deliver(own.coming)
            elif own.stepping:
                masters = {each.home.master for each in own.coming}
                self._steps.submit(masters, partial(self._deliver, own.coming))
                self._steps.join()

    def _left(self, own: _Pass) -> list[torch.Tensor]:
        """Return the parameters whose gradients come now: averages, and those held there before."""
        with self._lock:
            places = {each for each in own.places if not self._is_held(each)}
            averaged = own.averaged & places
            found = [each for each, home in self._homes.items() if averaged and home.number in averaged]
            return found + [each for each, number in self._held.items() if number in places]

    def _deliver(self, coming: Sequence[_Coming]) -> None:
        for each in coming:
            with each.home.place.at_work("a copy of gradients"):
                each.event.wait()
        arrivals = [
            (each.home.number, each.home.master, each.floats.view(each.home.master.shape)) for each in coming
        ]
        self._sums.add(arrivals, {each.home.number for each in coming})


def _check_thread(own: _Pass) -> None:
    if own.thread != threading.get_ident():
        raise SpecError(
            "step_in_backward=True expects backward passes from one thread at a time, got two at once; "
            "call backward() in one thread, or leave it out"
        )


def _when_backward_ends(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)
