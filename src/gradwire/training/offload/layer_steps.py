"""The optimizer's step, layer by layer, on a thread of its own while backward goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import nn

from gradwire.errors import SpecError


class LayerSteps:
    """Steps an optimizer for some of its parameters at a time, which have their gradients only meanwhile.

    Raises ``SpecError`` for an optimizer that looks at all parameters at once.

    Attributes
    ----------
    awaits_step
        Whether backward has stepped parameters since the last ``optimizer.step()``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise SpecError(
                "LBFGS updates all parameters at once, so it can't step layer by layer; leave out "
                "step_in_backward=True"
            )
        self._optimizer = optimizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gradwire optimizer")
        self._jobs: list[Future[None]] = []
        self.awaits_step = False
        self._stepping: int | None = None

    @property
    def active(self) -> bool:
        """Whether this thread is in a step of some parameters, which calls the optimizer's hooks, too."""
        return self._stepping == threading.get_ident()

    def begin(self) -> None:
        """Begin a backward pass. Raises ``SpecError`` if ``optimizer.step()`` didn't follow the last one."""
        if self.awaits_step:
            raise SpecError(
                "with step_in_backward=True each backward pass updates the masters, but optimizer.step() "
                "wasn't called after the last one; call it, or accumulate within no_sync()"
            )

    def submit(self, parameters: Set[nn.Parameter], deliver: Callable[[], None]) -> None:
        """Step these parameters after ``deliver`` has given them their gradients."""
        self.awaits_step = True
        self._jobs.append(self._thread.submit(self._step, parameters, deliver))

    def join(self) -> None:
        """Wait for the steps. Raises what one of them raised."""
        jobs, self._jobs = self._jobs, []
        for each in jobs:
            each.result()

    def stepped(self) -> None:
        """Note that ``optimizer.step()`` was called."""
        self.awaits_step = False

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _step(self, parameters: Set[nn.Parameter], deliver: Callable[[], None]) -> None:
        deliver()
        with self._restricted_to(parameters):
            self._optimizer.step()
        for each in parameters:
            each.grad = None

    @contextmanager
    def _restricted_to(self, parameters: Set[nn.Parameter]) -> Iterator[None]:
        """Let the optimizer have these parameters only, in its own groups, where it may keep state."""
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
