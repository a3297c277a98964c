"""Observe a DDP model: its gradients, and the times at which its gradients and its averages are ready.

DDP averages gradients as it does without this observer, with the script's communication hook, if any. The
averages stay bit-identical.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.attached import Attached
from gradwire.autotune.settings import DEFAULT, AutoConfig
from gradwire.autotune.steps import RecordedSteps, StepTimes, joined, shares, stretch
from gradwire.ddp.attach import attach, hook_state
from gradwire.errors import GradwireError
from gradwire.plan import Plan
from gradwire.planner.explain import name_coding
from gradwire.profile.settings import Settings
from gradwire.profile.tried import COUNTED, Tried
from gradwire.script.steps import after_backward, marks_of
from gradwire.sync.flat.gradients import float_count, floats_of


def keeping(settings: Settings) -> AutoConfig:
    """Return a configuration that keeps the times of all measured steps."""
    return replace(DEFAULT, window_steps=settings.steps)


class DdpWatch:
    """An observer of a DDP model until ``remove``, which calls ``passed(self)`` after each averaged step."""

    def __init__(
        self, model: DistributedDataParallel, settings: Settings, passed: Callable[[Any], None]
    ) -> None:
        self.steps = 0
        self._model = weakref.ref(model)
        self._settings, self._passed = settings, passed
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self._counts = [float_count(each) for each in self._parameters]
        self.floats = sum(self._counts)
        self._shares = shares(self._counts)
        self._every = not (model.find_unused_parameters or model.static_graph)
        self._finds_unused = model.find_unused_parameters and not model.static_graph
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
    def group(self) -> dist.ProcessGroup:
        """The process group that averages the gradients."""
        group: dist.ProcessGroup = self.model.process_group
        return group

    @property
    def model(self) -> DistributedDataParallel:
        """The observed model, which must still exist."""
        model = self._model()
        assert model is not None, "the caller is in its backward pass"
        return model

    @property
    def steps_s(self) -> list[float]:
        """The seconds between the ends of consecutive recorded steps. Reading them may wait for a device."""
        ends = [self._marks.seconds(end) for _, end in self._rows]
        return [after - before for before, after in pairwise(ends)]

    @property
    def problem(self) -> str:
        """The reason why the script isn't plain DDP training, or an empty string."""
        model = self._model()
        if model is None or hook_state(model) is None:
            return ""
        return (
            "expected a script without gradwire, got one that attaches gradwire; profile the script "
            "without attach, or call estimate(rate='1gbit') on the object that attach returned"
        )

    def _bucket_counts(self) -> tuple[int, ...]:
        """Return the number of floats of each bucket, in the order in which DDP averages them."""
        model = self._model()
        told = {} if model is None else model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
        nbytes = [int(each) for each in sizes.split(",") if each.strip()]
        size = self._parameters[0].element_size()
        found = tuple(each // size for each in nbytes)
        return found if sum(found) == self.floats else (self.floats,)

    @property
    def recorded(self) -> RecordedSteps:
        """The measured steps. Reading them waits for a device."""
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
        """Remove all hooks from the model."""
        for handle in self._handles:
            handle.remove()

    def _one(self, index: int, parameter: torch.Tensor) -> None:
        """Record that the gradient of parameter ``index`` is ready, before DDP reads the gradient."""
        model = self._model()
        if model is None or not model.require_backward_grad_sync:  # gradients only accumulate in this pass
            return
        if not self._queued:
            self._queued = True
            after_backward(self._end)
        self._ready.append((self._marks.now(), self._counts[index]))
        if self._samples and parameter.grad is not None and self._shares[index]:
            self._excerpt[index] = stretch(floats_of(parameter.grad), self._shares[index])

    @property
    def _samples(self) -> bool:
        """Whether this step is one of the last warm-up steps, in which gradients are sampled."""
        return 0 < self._settings.warm_up - self.steps <= DEFAULT.excerpt_steps

    def _end(self) -> None:
        """Record the end of a step; ignore the inner backward pass of a reentrant checkpoint."""
        self._queued = False
        if self._every and len(self._ready) < len(self._parameters):
            return
        ready, self._ready = self._ready, []
        places = [index for index, count in enumerate(self._shares) if count]
        if self._samples and (self._finds_unused or len(self._excerpt) == len(places)):
            unused = {index: torch.zeros(self._shares[index]) for index in places}  # as DDP averages them
            excerpt = unused | self._excerpt
            self._excerpts.append([excerpt[index] for index in places])
        self._excerpt = {}
        self.steps += 1
        if self.steps >= self._settings.warm_up:
            self._rows.append((ready, self._marks.now()))
        self._passed(self)


# Attach gradwire to the DDP model of an unchanged script, and measure steps with its chosen plan.

SETTLING = 5
"""The number of unmeasured steps after each change of plan, in which connections and buffers are new."""


class Attempt:
    """A trial of gradwire from the next forward pass on; ``refused`` gets the reason if attaching fails."""

    def __init__(self, watch: DdpWatch, plain_steps: int, refused: Callable[[str], None]) -> None:
        self._watch, self._refused = watch, refused
        self._plain_s = watch.steps_s[-plain_steps:]
        self._attached: Attached | None = None
        self._steps, self._same, self._nbytes = 0, 0, 0.0
        self._present: Plan | None = None
        self._hook = watch.model.register_forward_pre_hook(self._attach)

    def _attach(self, model: Any, _inputs: object) -> None:
        self._hook.remove()
        try:
            self._attached = attach(model)
        except GradwireError as error:
            self._refused(str(error))

    def passed(self) -> Tried | None:
        """Record a completed step, and return the measurement once enough steps used the chosen plan."""
        attached = self._attached
        if attached is None:  # the pass began before the attachment
            return None
        self._steps += 1
        plan = attached.plan
        self._same = self._same + 1 if attached.decisions and plan == self._present else 0
        self._present = plan
        if self._same == SETTLING:
            self._nbytes = self._sent_nbytes(attached)
        if self._same < SETTLING + COUNTED:
            return None
        world = dist.get_world_size(self._watch.group)
        return Tried(
            f"{name_coding(attached.plan.encoding)} over {attached.plan.algorithm}",
            self._steps - COUNTED,
            tuple(self._plain_s),
            tuple(self._watch.steps_s[-COUNTED:]),
            2 * 4 * self._watch.floats * (world - 1) / world,
            (self._sent_nbytes(attached) - self._nbytes) / COUNTED,
        )

    def close(self) -> None:
        """Close gradwire's connections after all ranks have ended their step."""
        self._hook.remove()
        if self._attached is not None:
            dist.barrier(self._watch.group)
            self._attached.close()

    @staticmethod
    def _sent_nbytes(attached: Attached) -> float:
        return float(attached.ledger.summary().total.cost.wire_nbytes)
