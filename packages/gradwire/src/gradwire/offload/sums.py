"""Sums of gradients from several devices, added in the order of the devices, not of their arrival."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from gradwire.errors import SpecError

Arrival = tuple[int, nn.Parameter, torch.Tensor]
"""A gradient that has arrived: the device's number, the master, and the gradient."""


@dataclass
class _OpenSum:
    """The sum in a master's ``grad``, to which an earlier device's gradient may still be added."""

    total: torch.Tensor
    version: int  # the version of ``total`` after the last addition
    base: torch.Tensor | None  # the master's gradient before the first addition
    added: list[tuple[int, torch.Tensor]]  # the gradients so far, in the order of the devices


class GradientSums:
    """The sums of gradients in the masters' ``grad``. Any thread may add gradients.

    A sum is open for at most one backward pass per device, and at most until ``optimizer.step()``. Its terms
    are added in the order of the devices, so its bits don't depend on the timing of threads.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._lock = threading.RLock()
        self._added = set[int]()
        self._open = dict[nn.Parameter, _OpenSum]()
        self._touched = set[nn.Parameter]()

    def settle(self) -> None:
        """Close all sums: later gradients are added to the masters' current ``grad``."""
        with self._lock:
            self._added.clear()
            self._open.clear()
            self._touched.clear()

    def add(self, arrivals: Sequence[Arrival], devices: Collection[int]) -> None:
        """Add the gradients of one backward pass, which ran on ``devices``, to the masters' ``grad``."""
        with self._lock, torch.no_grad():
            if not self._added.isdisjoint(devices) or all(each.grad is None for each in self._touched):
                self.settle()
            self._added.update(devices)
            for device, master, gradient in sorted(arrivals, key=lambda each: each[0]):
                self._add(device, master, gradient)
                self._touched.add(master)
            if len(self._added) == self._devices:
                self.settle()

    def _add(self, device: int, master: nn.Parameter, gradient: torch.Tensor) -> None:
        before = self._open.pop(master, None)
        if before is not None and (
            master.grad is not before.total or before.total._version != before.version
        ):
            before = None  # the user has zeroed or clipped the gradient
        if before is None and self._added.issuperset(range(device)):
            _accumulate(master, gradient)
            return
        if before is None:
            base = None if master.grad is None else master.grad.clone()
            before = _OpenSum(gradient, 0, base, [])
        place = sum(other <= device for other, _ in before.added)
        before.added.insert(place, (device, gradient))
        if place + 1 < len(before.added):
            _rebuild(master, before)
        else:
            _accumulate(master, gradient.clone() if master.grad is None else gradient)
        assert master.grad is not None
        before.total, before.version = master.grad, master.grad._version
        self._open[master] = before


def _accumulate(master: nn.Parameter, gradient: torch.Tensor) -> None:
    if master.grad is None:
        master.grad = gradient
    else:
        master.grad.add_(gradient)


def _rebuild(master: nn.Parameter, found: _OpenSum) -> None:
    terms = [each for each in (found.base, *(each for _, each in found.added)) if each is not None]
    total = terms[0].clone()
    for each in terms[1:]:
        total.add_(each)
    assert master.grad is not None
    master.grad.copy_(total)


# The optimizer's step, layer by layer, on a separate thread while backward continues.


class LayerSteps:
    """The optimizer's steps, layer by layer. Parameters have gradients only during their step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise SpecError(
                "step_in_backward=True: expected an optimizer that can step layer by layer, got LBFGS; "
                "omit step_in_backward, or use another optimizer"
            )
        self._optimizer = optimizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gradwire optimizer")
        self._jobs: list[Future[None]] = []
        self.awaits_step = False
        self._stepping: int | None = None

    @property
    def active(self) -> bool:
        """Whether the calling thread is stepping a layer, which also calls the optimizer's step hooks."""
        return self._stepping == threading.get_ident()

    def begin(self) -> None:
        """Begin a backward pass. Raises ``SpecError`` unless ``optimizer.step()`` followed the last pass."""
        if self.awaits_step:
            raise SpecError(
                "step_in_backward=True: expected optimizer.step() after each backward pass, got another "
                "backward pass; call optimizer.step() between them, or accumulate gradients within "
                "no_sync()"
            )

    def submit(self, parameters: Set[nn.Parameter], deliver: Callable[[], None]) -> None:
        """Queue ``deliver``, which sets the gradients of ``parameters``, and then their optimizer step."""
        self.awaits_step = True
        self._jobs.append(self._thread.submit(self._step, parameters, deliver))

    def join(self) -> None:
        """Wait until all queued steps have ended. Raises the error of the first step that failed."""
        jobs, self._jobs = self._jobs, []
        wait(jobs)
        for each in jobs:
            each.result()

    def stepped(self) -> None:
        """Record a call of ``optimizer.step()``, after which the next backward pass may begin."""
        self.awaits_step = False

    def close(self) -> None:
        """End the thread that runs the optimizer's steps."""
        self._thread.shutdown()

    def _step(self, parameters: Set[nn.Parameter], deliver: Callable[[], None]) -> None:
        deliver()
        with self._restricted_to(parameters):
            self._optimizer.step()
        for each in parameters:
            each.grad = None

    @contextmanager
    def _restricted_to(self, parameters: Set[nn.Parameter]) -> Iterator[None]:
        """Restrict the optimizer to ``parameters`` in a ``with`` block. Its groups stay the same objects."""
        groups = self._optimizer.param_groups
        every = [group["params"] for group in groups]
        for group, own in zip(groups, every, strict=True):
            group["params"] = [each for each in own if each in parameters]
        self._optimizer.param_groups = [group for group in groups if group["params"]]
        self._stepping = threading.get_ident()
        try:
            yield
        finally:
            self._stepping = None
            self._optimizer.param_groups = groups
            for group, own in zip(groups, every, strict=True):
                group["params"] = own
