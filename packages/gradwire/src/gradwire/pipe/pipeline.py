"""A pipeline's gradients in flight, which are averaged during later steps and then applied."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.nn import Parameter

from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.errors import StateError
from gradwire.pipe.correction import Eager
from gradwire.sync.bucket.work import BucketWork
from gradwire.sync.checkpoint import InFlight
from gradwire.sync.flat.backward import BackwardOverlap
from gradwire.sync.flat.buckets import FlatBuckets, UsedParameters
from gradwire.sync.flat.gradients import Bucket, FlatGradients
from gradwire.sync.flat.update import clip, in_force, scheduled
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.trained import TrainedParameters


@dataclass(frozen=True, slots=True)
class Treatment:
    """The arguments of ``PipeSGD`` by which a pipeline corrects, clips, and changes gradients."""

    correction: str
    max_norm: float
    on_average: Callable[[Sequence[Parameter]], object]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A gradient in flight, with the learning rates of its step and the parameters that the step used."""

    gradients: FlatGradients
    works: list[BucketWork]
    scheduled: list[dict[str, Any]]
    used: UsedParameters


class Pipeline:
    """The gradients of up to K steps in flight, for a fixed set of parameters.

    K buffers are used in turn: backward writes into one buffer, the exchange averages this buffer in place,
    and the optimizer reads it K steps later, just before backward reuses it. Between steps every ``.grad`` is
    None, because its buffer is in flight. If the plan divides the gradient into buckets, each bucket is sent
    as soon as backward has computed it (equation 6), after the buckets of earlier steps. Otherwise, the
    gradient is sent after backward (equation 5). ``buckets_of`` returns the buckets of a gradient in the
    layout that all K buffers share.
    """

    def __init__(
        self,
        trained: TrainedParameters,
        optimizer: torch.optim.Optimizer,
        sync: GradientSync,
        treatment: Treatment,
        buckets_of: Callable[[FlatGradients], FlatBuckets],
    ) -> None:
        self._trained, self._optimizer, self._sync, self._treatment = trained, optimizer, sync, treatment
        self._size = sync.plan.pipeline
        parameters, on_device = trained.parameters, sync.plan.encodes_on_device
        self._free = deque(
            FlatGradients(parameters, with_frozen=True, on_device=on_device) for _ in range(self._size)
        )
        self.count = self._free[0].buffer.numel()
        self._under_way: deque[_UnderWay] = deque()
        steps = 0 if treatment.correction == "none" else self._size - 1  # one step in flight isn't stale
        self._correction = Eager(parameters, optimizer, steps, treatment.max_norm)
        self._free[0].detach()
        self._overlap = BackwardOverlap(sync, buckets_of(self._free[0]))

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def corrects(self) -> bool:
        """Whether ranks compute at virtual weights, which differ between ranks."""
        return self.own_count > 0

    @property
    def own_count(self) -> int:
        """The largest number of recorded local gradients: K - 1 if updates are eager, else 0."""
        return self._correction.steps

    def add(self, compute_loss: Callable[[], torch.Tensor], *, alone: bool) -> tuple[float, float]:
        """Compute a step's gradient and start its exchange, and return the loss and the correction's seconds.

        With ``alone``, the gradient is applied before the next step, so it needs no correction.
        """
        gradients, correction_s = self._free[0], 0.0

        def copy(bucket: Bucket) -> None:
            nonlocal correction_s
            if not alone:
                began = perf_counter()
                self._correction.copy(gradients, bucket)
                correction_s += perf_counter() - began

        started = perf_counter()
        with self._overlap.guarded():
            with self._correction.ahead():
                correction_s += perf_counter() - started
                loss = self._overlap.backward(compute_loss, gradients, copy)
            works, used = self._overlap.start_rest()
        gradients.detach()  # a zero_grad of the caller must not change a buffer in flight
        values = scheduled(self._optimizer)
        if not alone:
            self._correction.note(values, used.unused)
        self._under_way.append(_UnderWay(self._free.popleft(), works, values, used))
        return loss, correction_s

    def apply_all_but(self, count: int) -> StepRecord:
        """Apply the oldest gradients in flight until ``count`` are left, and return the cost of waiting."""
        waits = StepRecord()
        while len(self._under_way) > count:
            waits += self._apply_oldest()
        return waits

    def _apply_oldest(self) -> StepRecord:
        oldest, treatment = self._under_way[0], self._treatment
        started = perf_counter()
        cost = sum((work.wait() for work in oldest.works), ExchangeCost())
        wait_s = perf_counter() - started
        self._under_way.popleft()
        self._free.append(oldest.gradients)
        self._correction.keep(len(self._under_way))
        oldest.gradients.attach(oldest.used.absent)
        treatment.on_average(oldest.gradients.parameters)
        averaged = oldest.gradients.collect()
        if not math.isinf(treatment.max_norm):
            clip(averaged, treatment.max_norm)
        self._trained.shield()
        with in_force(oldest.scheduled, self._optimizer):
            self._optimizer.step()
        return StepRecord.of_wait(wait_s, cost)

    def settle(self) -> None:
        """Wait until all exchanges are done, without applying gradients. Raises the error of an exchange."""
        for each in self._under_way:
            for work in each.works:
                work.wait()
        self._sync.settle()

    def in_flight(self) -> list[InFlight]:
        """Wait for the exchanges, and return copies of the averaged gradients in flight, oldest first."""
        self.settle()
        own = self._correction.own()  # the local gradients of the newest steps
        lacking = len(self._under_way) - len(own)
        return [
            InFlight(
                on_host(each.gradients.buffer).clone(),
                each.scheduled,
                mine,
                tuple(sorted(each.used.absent)),
                tuple(sorted(each.used.unused)),
            )
            for each, mine in zip(self._under_way, [*[None] * lacking, *own], strict=True)
        ]

    def check_fits(self, in_flight: Sequence[InFlight]) -> None:
        """Raise ``StateError`` unless these gradients belong to this model and fit into the pipeline."""
        numbers = {number for each in in_flight for number in (*each.absent, *each.own_absent)}
        if numbers and max(numbers) >= len(self._trained.parameters):
            raise StateError(
                f"expected gradients in flight for {len(self._trained.parameters)} parameters, got one for "
                f"parameter {max(numbers)}; resume with the same model and the same frozen parameters"
            )
        groups = len(self._optimizer.param_groups)
        if any(len(each.scheduled) > groups for each in in_flight):
            raise StateError(
                f"expected gradients in flight with at most {groups} parameter groups, got "
                f"{max(len(each.scheduled) for each in in_flight)}; resume with the same optimizer"
            )
        counts = [each.gradient.numel() for each in in_flight]
        own = [each.own.numel() for each in in_flight if each.own is not None]
        if len(counts) > self._size or {*counts, *own} - {self.count}:
            raise StateError(
                f"a pipeline of {self._size}: expected at most {self._size} gradients in flight with "
                f"{self.count} floats each, got gradients of {counts} floats and local gradients of {own}; "
                "resume with the same model and plan, or drain before saving"
            )

    def resume(self, in_flight: Sequence[InFlight]) -> None:
        """Continue with saved gradients in flight that fit, after ``settle``, and drop the current ones."""
        self._free.extend(each.gradients for each in self._under_way)
        self._under_way.clear()
        self._free[0].detach()  # a drain may have left one of these buffers in .grad
        for each in in_flight:
            gradients = self._free.popleft()
            gradients.buffer.copy_(each.gradient)
            gradients.put()
            used = UsedParameters(gradients, each.own_absent, each.absent)
            self._under_way.append(_UnderWay(gradients, [], each.scheduled, used))
        self._correction.resume(in_flight)
