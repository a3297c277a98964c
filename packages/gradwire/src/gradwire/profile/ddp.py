"""Watches one DDP model: when each gradient is ready, when all averages are there, and what is averaged.

Nothing stands between DDP and its gradients: it averages them as it always does, with a hook of the script's
if there is one. So all bits stay what they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gradwire.autotune.config import DEFAULT, AutoConfig
from gradwire.autotune.observed import RecordedSteps, joined, shares, stretch
from gradwire.autotune.step_times import StepTimes
from gradwire.ddp.attach import HookState
from gradwire.profile.settings import Settings
from gradwire.sync.buckets import float_count, floats_of

# Moments in a step, by the clock of what computes: the host's, or an accelerator's own.


class Marks(Protocol):
    """Notes moments without waiting, and tells their seconds later."""

    def now(self) -> Any:
        """Return a mark of this moment."""

    def seconds(self, mark: Any) -> float:
        """Return when that was, in seconds from some moment on; this may wait for a device."""


class HostMarks:
    """Moments by the host's clock."""

    def now(self) -> float:
        """Return a mark of this moment."""
        return perf_counter()

    def seconds(self, mark: float) -> float:
        """Return when that was."""
        return mark


class DeviceMarks:
    """Moments in the stream of work of an accelerator, which the host runs ahead of."""

    def __init__(self, device: torch.device) -> None:
        self._device = device.type
        self._first = self.now()

    def now(self) -> torch.Event:
        """Return a mark behind all work that is queued."""
        mark = torch.Event(self._device, enable_timing=True)
        mark.record()
        return mark

    def seconds(self, mark: torch.Event) -> float:
        """Return when the device had come there."""
        mark.synchronize()
        return 1e-3 * self._first.elapsed_time(mark)


def marks_of(device: torch.device) -> Marks:
    """Return marks in the stream of the gradients' device."""
    return HostMarks() if device.type == "cpu" else DeviceMarks(device)


def keeping(settings: Settings) -> AutoConfig:
    """Return thresholds with which the times of all steps that count are kept."""
    return replace(DEFAULT, window_steps=settings.steps)


# The end of a backward pass, after DDP's and FSDP's own ends of it.


def after_backward(then: Callable[[], None]) -> None:
    """Call ``then`` at the end of the backward pass under way.

    DDP and FSDP queue their own callbacks while it runs, and wait for gradients in them; what is queued in a
    callback comes after all of those.
    """
    queue = Variable._execution_engine.queue_callback
    queue(lambda: queue(then))


class DdpWatch:
    """Watches until ``remove``.

    Parameters
    ----------
    model
        The watched model.
    settings
        The numbers of steps that count, and that do not.
    passed
        Called with this after each step, when all gradients are averaged.

    Attributes
    ----------
    steps
        The number of steps that the model has taken.
    """

    def __init__(
        self, model: DistributedDataParallel, settings: Settings, passed: Callable[[Any], None]
    ) -> None:
        self.steps = 0
        self._model = weakref.ref(model)
        self._settings, self._passed = settings, passed
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._counts = [float_count(each) for each in self._parameters]
        self._shares = shares(self._counts)
        self._every = not (model.find_unused_parameters or model.static_graph)
        self._device = self._parameters[0].device
        self._marks = marks_of(self._device)
        self._ready: list[tuple[Any, int]] = []
        self._rows: list[tuple[list[tuple[Any, int]], Any]] = []
        self._excerpt: dict[int, torch.Tensor] = {}
        self._excerpts: list[list[torch.Tensor]] = []
        self._queued = False
        self._handles = [
            each.register_post_accumulate_grad_hook(partial(self._one, index))  # type: ignore[no-untyped-call]
            for index, each in enumerate(self._parameters)
        ]

    @property
    def floats(self) -> int:
        """The floats of all gradients."""
        return sum(self._counts)

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that average."""
        group: dist.ProcessGroup = self.model.process_group
        return group

    @property
    def model(self) -> DistributedDataParallel:
        """The model, while it lives."""
        model = self._model()
        assert model is not None, "whoever asks is in its backward pass"
        return model

    @property
    def steps_s(self) -> list[float]:
        """The seconds between the ends of noted steps; this may wait for a device."""
        ends = [self._marks.seconds(end) for _, end in self._rows]
        return [after - before for before, after in pairwise(ends)]

    @property
    def problem(self) -> str:
        """Why these steps say nothing of DDP's, in a sentence; empty where they do."""
        model = self._model()
        hooks = [] if model is None else model._comm_hooks
        if not any(isinstance(state, HookState) for _, state in hooks):
            return ""
        return (
            "the script lets gradwire exchange its gradients already; profile it without attach, or ask what "
            "attach returned: attached.estimate(rate='1gbit')"
        )

    def _bucket_counts(self) -> tuple[int, ...]:
        """Return the floats of each bucket, in the order in which DDP averages them."""
        model = self._model()
        told = {} if model is None else model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
        nbytes = [int(each) for each in sizes.split(",") if each.strip()]
        size = self._parameters[0].element_size()
        found = tuple(each // size for each in nbytes)
        return found if sum(found) == self.floats else (self.floats,)

    @property
    def recorded(self) -> RecordedSteps:
        """The steps whose times count; this waits for a device."""
        now_s = 0.0
        times = StepTimes(lambda: now_s, keeping(self._settings))
        for ready, end in self._rows:
            for mark, count in ready:
                now_s = self._marks.seconds(mark)
                times.handed_over(count)
            now_s = self._marks.seconds(end)
            times.end()
        gradients = tuple(map(joined, self._excerpts))
        return RecordedSteps("DDP", self._device, times, self._bucket_counts(), (), gradients)

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()

    def _one(self, index: int, parameter: torch.Tensor) -> None:
        """Note that the gradient of one parameter is ready, before DDP takes it."""
        model = self._model()
        if model is None or not model.require_backward_grad_sync:  # a pass whose gradients only accumulate
            return
        if not self._queued:
            self._queued = True
            after_backward(self._end)
        self._ready.append((self._marks.now(), self._counts[index]))
        if self._samples and parameter.grad is not None and self._shares[index]:
            self._excerpt[index] = stretch(floats_of(parameter.grad), self._shares[index])

    @property
    def _samples(self) -> bool:
        """Whether this step is one of those before times count from which gradients are kept."""
        return 0 < self._settings.warm_up - self.steps <= DEFAULT.excerpt_steps

    def _end(self) -> None:
        """Note that all averages are there; a checkpoint's inner pass may end before the model's has."""
        self._queued = False
        if self._every and len(self._ready) < len(self._parameters):
            return
        ready, self._ready = self._ready, []
        if self._samples:
            whole = len(self._excerpt) == sum(map(bool, self._shares))
            self._excerpts += [[self._excerpt[index] for index in sorted(self._excerpt)]] if whole else []
        self._excerpt = {}
        self.steps += 1
        if self.steps >= self._settings.warm_up:
            self._rows.append((ready, self._marks.now()))
        self._passed(self)
