"""Pipe-SGD: pipelined SGD over an all-reduce (Li et al., NeurIPS 2018, algorithm 1)."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from gradwire.codecs.spec import is_whole
from gradwire.errors import ExchangeError, SpecError, StateError, shown
from gradwire.exchange import Accounting, Exchange
from gradwire.training.communication.buckets import Buckets
from gradwire.training.communication.thread import Handover
from gradwire.training.gradients.clip import clip
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.gradients.reached import Reach
from gradwire.training.gradients.residual import Residuals
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.methods.method import WorkerMethod, backward
from gradwire.training.methods.schedule import in_force, scheduled
from gradwire.training.methods.trained import check_optimizer, relaid
from gradwire.training.pipe.correction import CORRECTIONS, Correction, Stale, check_correction, check_model
from gradwire.training.pipe.eager import Eager
from gradwire.training.pipe.in_flight import InFlight
from gradwire.training.replicas.broadcast import broadcast_buffers, count_buffers


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A gradient on the network, with the learning rate of its step and what its backward reached."""

    gradients: FlatGradients
    handovers: list[Handover]
    scheduled: list[dict[str, Any]]
    reach: Reach


class PipeSGD(WorkerMethod):
    """Update with the averaged gradient of ``pipeline`` steps ago, while newer ones are on the network.

    Step t waits for the averaged gradient of step t-K, updates ``w[t] = w[t-1] - lr * mean(g[t-K])``,
    computes ``g[t]`` and hands it to the communication thread. Gradients of steps <= 0 are zero: the first K
    steps make no update at all, so momentum and weight decay do not act there either. A step takes
    ``max(l_up + l_comp, l_comm)`` from K = 2 on (equation 4). A gradient is applied with the learning rate
    (and momentum or betas) of the step that computed it, so that K = 1 is D-Sync under every schedule, bit
    for bit once drained.

    With ``correction="eager"`` a rank computes ``g[t]`` at virtual weights, where its own gradients of the
    steps under way stand in for their averages, so that the pipeline learns about as fast as D-Sync;
    ``eager.Eager`` tells how. They exist only while ``compute_loss`` runs: at any other time the model holds
    the masters, which have the same bits on all ranks. With ``"none"`` it computes at ``w[t]``, as the paper
    does, and a larger K only adds staleness.

    K buffers go round: backward writes into one, the exchange averages it in place, and the optimizer reads
    it K steps later, just before backward takes it again. Eager updates copy K - 1 own gradients, the weights
    and the optimizer's state; the paper's pipeline copies nothing. Between steps every ``.grad`` is None,
    since its buffer is on the network. Where the plan cuts the gradient into buckets, they go out one after
    the other once backward has ended: the pipeline hides them already.

    Buffers of the model (a BatchNorm's running statistics) begin as rank 0's and are each rank's own while it
    trains. An eager pipeline agrees on rank 0's in every ``drain``.

    Where a parameter is unfrozen the pipeline drains first. One that is frozen still gets the gradients of
    the steps before.

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure.
    exchange
        Belongs to the communication thread while gradients are under way; drain before using its link
        otherwise.
    pipeline
        K, the iteration dependency, from 1 up. Raises ``SpecError``.
    warmup_steps
        So many first steps are plain D-Sync; the pipeline starts, empty, after them. The paper warms up for 5
        epochs (AlexNet, ResNet) and not at all for small or convex models.
    on_average
        Called with every averaged gradient, in place in ``.grad``, just before the optimizer's step. All
        ranks must change it alike.
    ledger
        Counts bytes and seconds by bucket and step, if there is one.
    correction
        ``"eager"`` or ``"none"``, the same on all ranks. Raises ``SpecError`` for any other, and for eager
        updates of a model whose forward pass writes its parameters.
    max_norm
        The averaged gradient is clipped to this 2-norm after ``on_average``, and so is each own gradient of
        an eager pipeline, by its own norm; infinite for no clipping.
    strict
        Whether a step raises ``LossyError`` on all ranks, instead of a warning on one, where encoding keeps
        taking most of a parameter's gradient away; the same on all ranks.

    Attributes
    ----------
    residuals
        What this rank's encodings lost, where the plan keeps it, one for all K buffers in the order of the
        steps: what step t loses goes out with step t+1. Drain before reading or loading its state.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        pipeline: int = 2,
        warmup_steps: int = 0,
        on_average: Callable[[FlatGradients], object] = lambda _: None,
        ledger: Ledger | None = None,
        correction: str = CORRECTIONS[0],
        max_norm: float = math.inf,
        strict: bool = False,
    ) -> None:
        check_optimizer(optimizer, "PipeSGD")
        super().__init__(model, exchange, ledger, optimizer, strict)
        if not (is_whole(pipeline, 1, sys.maxsize) and is_whole(warmup_steps, 0, sys.maxsize)):
            raise SpecError(
                f"PipeSGD wants pipeline >= 1 and warmup_steps >= 0, whole numbers, but got {pipeline=} and "
                f"{warmup_steps=}; pipeline=2 hides the network, 1 is synchronous"
            )
        if not callable(on_average):
            raise SpecError(f"on_average must be a function of the parameters, but is {shown(on_average)}")
        self.correction = check_correction(correction)
        self.pipeline = pipeline
        self.warmup_steps = warmup_steps
        self._optimizer = optimizer
        self._on_average, self._max_norm = on_average, max_norm
        self._under_way: deque[_UnderWay] = deque()
        self._dropped = 0
        self._free = self._gradients()
        self._correction = self._corrected(model)
        self._free[0].detach()
        self.residuals = Residuals(exchange.plan, exchange.link.rank, exchange.link.world)
        self._residual = relaid(self.residuals, self._free[0])
        self._buckets = Buckets(exchange, self.meter, self._free[0], self._residual)

    def _gradients(self) -> deque[FlatGradients]:
        """Return K new buffers, of so many floats each."""
        parameters = self.trained.parameters
        self.count = sum(each.numel() for each in parameters)
        return deque(FlatGradients(parameters, with_frozen=True) for _ in range(self.pipeline))

    def _before_growing(self) -> StepRecord:
        """Apply all outstanding gradients."""
        return self._apply_all_but(0)

    def _lay_out(self) -> None:
        before = self._free[0]
        self._buckets.close()
        self._free = self._gradients()
        self._correction = self._corrected(self.model)
        self._free[0].detach()
        self._residual = relaid(self.residuals, self._free[0], before)
        self._buckets = Buckets(self.exchange, self.meter, self._free[0], self._residual)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        warms_up = self.steps_done < self.warmup_steps
        waits = self._apply_all_but(0 if warms_up else self.pipeline - 1)
        gradients = self._free[0]
        correcting = perf_counter()
        with self._correction.ahead():
            correction_s = perf_counter() - correcting
            loss = backward(compute_loss, gradients)
        reach = Reach(gradients)
        gradients.detach()  # a zero_grad of the caller must not reach what is on the network
        values = scheduled(self._optimizer)
        if not warms_up:
            correcting = perf_counter()
            self._correction.note(gradients, values, reach.own)
            correction_s += perf_counter() - correcting
        handovers = self._hand_over(gradients, reach)
        self._under_way.append(_UnderWay(self._free.popleft(), handovers, values, reach))
        if warms_up:
            waits += self._apply_all_but(0)
        return waits.within(perf_counter() - started, loss=loss, correction_s=correction_s)

    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first, and leave the pipeline empty; return what that cost.

        The last averaged gradient stays in ``.grad``. The next step starts a new pipeline. An eager pipeline
        copies rank 0's buffers to all ranks. Raises what the exchange raised, ``LinkTimeoutError``, or what a
        strict ``step`` would raise; after a ``close`` that has dropped gradients, ``ExchangeError``.
        """
        if self.closed:
            self.check_whole()
            return StepRecord()
        started = perf_counter()
        waits = self._apply_all_but(0) + self.agree_on_buffers()
        self.meter.tell()
        return waits.within(perf_counter() - started, steps=0)

    def agree_on_buffers(self) -> StepRecord:
        """Copy rank 0's buffers, exactly, to all ranks, where updates are eager; return what that cost.

        Those that a ``state_dict`` of the model holds. All ranks call it together; it waits for what is on
        the network. Raises ``ExchangeError``.
        """
        if not self._correction.CORRECTS:
            return StepRecord()
        self.settle()
        try:
            accounting = broadcast_buffers(self.model, self.exchange)
        except ExchangeError as error:
            error.add_note(
                "while rank 0's buffers were copied to all ranks: drain, evaluating and state_dict are for "
                "all ranks to call together, with buffers of one size on all of them"
            )
            raise
        count_buffers(self.ledger, accounting)
        return StepRecord.of_wait(accounting.total_s, accounting)

    def check_whole(self) -> None:
        """Raise ``ExchangeError`` if ``close`` has dropped gradients that were on their way."""
        if self._dropped:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: this {type(self).__name__} was closed with {self._dropped} "
                "gradients on their way, which are lost; call drain() or state_dict() before close()"
            )

    def settle(self) -> None:
        """Wait until nothing is on the network any more; apply nothing.

        Raises what the exchange raised, or ``LinkTimeoutError``.
        """
        for each in self._under_way:
            for handover in each.handovers:
                self._buckets.thread.wait(handover)

    def in_flight(self) -> list[InFlight]:
        """Return copies of the averaged gradients that are still to be applied, oldest first.

        Waits for them, like ``settle``.
        """
        self.settle()
        own = self._correction.own()  # those of the newest
        lacking = len(self._under_way) - len(own)
        return [
            InFlight(
                each.gradients.buffer.clone(),
                each.scheduled,
                mine,
                tuple(sorted(each.reach.absent)),
                tuple(sorted(each.reach.own)),
            )
            for each, mine in zip(self._under_way, [*[None] * lacking, *own], strict=True)
        ]

    def check_fits(self, in_flight: Sequence[InFlight]) -> None:
        """Raise ``StateError`` unless this pipeline has room for these gradients of this model."""
        numbers = {number for each in in_flight for number in (*each.absent, *each.own_absent)}
        if numbers and max(numbers) >= len(self.trained.parameters):
            raise StateError(
                f"this model trains {len(self.trained.parameters)} parameters, but those in flight tell "
                f"of number {max(numbers)}; resume with the same model, as far unfrozen"
            )
        groups = len(self._optimizer.param_groups)
        if any(len(each.scheduled) > groups for each in in_flight):
            raise StateError(
                f"this optimizer has {groups} parameter groups, but gradients in flight were computed with "
                "more; resume with the same optimizer"
            )
        counts = [each.gradient.numel() for each in in_flight]
        own = [each.own.numel() for each in in_flight if each.own is not None]
        if len(counts) > self.pipeline or {*counts, *own} - {self.count}:
            raise StateError(
                f"a pipeline of {self.pipeline} takes up to {self.pipeline} gradients of {self.count} "
                f"floats, but those in flight have {counts}; resume with the same model and plan, or drain "
                "before saving"
            )

    def resume(self, steps_done: int, in_flight: Sequence[InFlight]) -> None:
        """Go on where ``in_flight`` was called after so many steps; what is under way here is dropped.

        Raises ``StateError`` for gradients that do not fit this pipeline and this model, and, like
        ``settle``, what the exchange raised; nothing is changed then.
        """
        self.check_fits(in_flight)
        self.settle()
        self._free.extend(each.gradients for each in self._under_way)
        self._under_way.clear()
        self._free[0].detach()  # a drain may have left one of these buffers in .grad
        for each in in_flight:
            gradients = self._free.popleft()
            gradients.buffer.copy_(each.gradient)
            reach = Reach(gradients, each.own_absent, each.absent)
            self._under_way.append(_UnderWay(gradients, [], each.scheduled, reach))
        newest = list(in_flight)[-self.own_count :] if self.own_count else []
        self._correction.resume(
            [self._own_of(each) for each in newest],
            [each.scheduled for each in newest],
            [each.absent if each.own is None else each.own_absent for each in newest],
        )
        self.steps_done = steps_done
        self._synchronised = self._synchronised or steps_done > 0  # equal when they were saved

    @property
    def own_count(self) -> int:
        """How many own gradients can be kept at once: K - 1 where updates are eager, else none."""
        return self.pipeline - 1 if self._correction.CORRECTS else 0

    def close(self) -> None:
        """Finish what is on the network, apply none of it, and join the thread; may be called twice.

        Raises ``LinkTimeoutError`` if the thread does not end.
        """
        if not self.closed:
            super().close()
            self._dropped = len(self._under_way)
            self._under_way.clear()
            self._buckets.close()

    def abort(self) -> None:
        """Close without sending what is still queued; peers that wait for it run into their timeout."""
        for each in self._under_way:
            for handover in each.handovers:
                handover.result.cancel()
        self.close()

    def _corrected(self, model: nn.Module) -> Correction:
        """Return what this pipeline computes at; one of a single step has nothing to correct for."""
        if self.correction == "none" or self.pipeline == 1:
            return Stale()
        check_model(model)
        return Eager(self._free[0].parameters, self._optimizer, self.pipeline, self._max_norm)

    def _own_of(self, each: InFlight) -> torch.Tensor:
        """Return an own gradient, or what stands in for one that was not kept: the average, clipped."""
        if each.own is not None:
            return each.own
        average = each.gradient.clone()
        clip(average, self._max_norm)
        return average

    def _hand_over(self, gradients: FlatGradients, reach: Reach) -> list[Handover]:
        """Give the buckets to the communication thread, which takes them in this order."""
        last = len(self._buckets.cut) - 1
        return [
            self._buckets.hand_over(self.steps_done + 1, gradients, number, reach if number == last else None)
            for number in range(last + 1)
        ]

    def _apply_all_but(self, count: int) -> StepRecord:
        """Apply the oldest gradients under way until ``count`` are left; return what waiting cost."""
        waits = StepRecord()
        while len(self._under_way) > count:
            waits += self._apply_oldest()
        return waits

    def _apply_oldest(self) -> StepRecord:
        """Wait for the oldest gradient under way and update the weights with it."""
        oldest = self._under_way[0]
        started = perf_counter()
        accounting = sum(map(self._buckets.thread.wait, oldest.handovers), Accounting())
        wait_s = perf_counter() - started
        self._under_way.popleft()
        self._free.append(oldest.gradients)
        self._correction.keep(len(self._under_way))
        oldest.gradients.attach(oldest.reach.absent)
        self._on_average(oldest.gradients)
        if not math.isinf(self._max_norm):
            clip(oldest.gradients.collect(), self._max_norm)
        self.trained.shield()
        with in_force(oldest.scheduled, self._optimizer):
            self._optimizer.step()
        return StepRecord.of_wait(wait_s, accounting)
