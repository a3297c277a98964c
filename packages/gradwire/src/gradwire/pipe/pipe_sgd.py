"""Pipe-SGD: pipelined SGD over an all-reduce (Li et al., NeurIPS 2018, algorithm 1)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.autotune.initial_plan import InitialPlan
from gradwire.autotune.rules import whole
from gradwire.autotune.settings import Auto
from gradwire.codecs.spec import is_whole
from gradwire.errors import ExchangeError, SpecError, shown
from gradwire.pipe.correction import CORRECTIONS, check_correction, check_forward
from gradwire.pipe.pipeline import Pipeline, Treatment
from gradwire.plan import PlanLike
from gradwire.sync.checkpoint import InFlight, RankState
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.replicas import (
    broadcast_buffers,
    check_in_flight,
    check_replicas,
    count_buffers,
)
from gradwire.sync.trained import check_optimizer
from gradwire.sync.used_parameters import check_max_norm, note_step

_PIPELINE = 2  # hides the network; more only adds staleness


class PipeSGD(WorkerMethod):
    """Update with the averaged gradient of K steps ago, while newer ones are on the network.

    It connects with the group's other ranks by itself, so that its traffic never mixes with the script's own
    collectives. Weights are the same bits on all ranks at every moment between two calls.

    Step t waits for the averaged gradient of step t-K, updates ``w[t] = w[t-1] - lr * mean(g[t-K])``,
    computes ``g[t]`` and hands it to the communication thread. Gradients of steps <= 0 are zero: the first K
    steps make no update at all, so momentum and weight decay do not act there either. A step takes
    ``max(l_up + l_comp, l_comm)`` from K = 2 on (equation 4). A gradient is applied with the learning rate
    (and momentum or betas) of the step that computed it, so that K = 1 is D-Sync under every schedule, bit
    for bit once drained.

    With ``correction="eager"`` a rank computes ``g[t]`` at virtual weights, where its own gradients of the
    steps under way stand in for their averages, so that the pipeline learns about as fast as D-Sync
    (``correction.Eager``). They exist only while ``compute_loss`` runs: at any other time the model holds
    the masters. With ``"none"`` it computes at ``w[t]``, as the paper does.

    Buffers of the model (a BatchNorm's running statistics) begin as rank 0's and are each rank's own while it
    trains. An eager pipeline agrees on rank 0's in every ``drain``. Where a parameter is unfrozen the
    pipeline drains first. One that is frozen still gets the gradients of the steps before.

    Parameters
    ----------
    model
        Dense float32 parameters on one device. Raises ``TensorError`` otherwise. The module inside a
        ``DistributedDataParallel``, which would average gradients, too.
    optimizer
        Any ``torch.optim`` optimizer of the model's parameters whose ``step`` needs no closure. The script
        does not call its ``step``; it calls the ``step`` of a learning rate scheduler as usual, once per
        step.
    plan
        What ``Plan.of`` reads; its ``pipeline`` is K, how many steps may be under way at once. A codec or its
        spec is for a ring with a pipeline of 2. By default, or with ``"auto"`` or an ``Auto``, the run
        measures and chooses a plan with a pipeline of 2 itself; the pipeline is drained where it takes
        another.
    warmup_steps
        The number of synchronous steps before the pipeline starts, empty. The paper warms up for 5 epochs
        (AlexNet, ResNet) and not at all for small or convex models.
    max_norm
        The averaged gradient is scaled down to this 2-norm, over all parameters together, where it is longer;
        above 0. It is the same on all ranks, unlike a clipping of their own gradients. Own gradients of an
        eager pipeline are clipped to it, too, each by its own norm.
    on_average
        Called with the trained parameters when the averaged gradient is in their ``.grad`` (None where no
        rank has used one), before the clipping and the update. It may change or replace any ``.grad`` (a new
        None counts as 0), in the same way on all ranks. Own gradients of an eager pipeline are not passed.
    correction
        ``"eager"`` or ``"none"``, which saves the local update, its time and its memory; the same on all
        ranks.
    strict, group, timeout_s, ledger
        See ``Method``.

    Raises
    ------
    SpecError
        For an invalid plan, warm-up, norm, or timeout, for a DDP model, for an optimizer of other
        parameters, and for eager updates of a model whose forward pass writes its parameters.
    ExchangeError
        When ``torch.distributed`` is not initialised, this process is not in the group, the other ranks do
        not come within the timeout or have other options.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: PlanLike | Auto = None,
        *,
        warmup_steps: int = 0,
        max_norm: float | None = None,
        on_average: Callable[[Sequence[Parameter]], object] = lambda _: None,
        correction: str = CORRECTIONS[0],
        strict: bool = False,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        initial = InitialPlan.of(plan, pipeline=_PIPELINE)
        chosen = initial.plan.for_whole_gradients("PipeSGD")
        if not is_whole(warmup_steps, 0, sys.maxsize):
            raise SpecError(
                f"warmup_steps must be a whole number of steps from 0 up, but is {shown(warmup_steps)}"
            )
        if not callable(on_average):
            raise SpecError(f"on_average must be a function of the parameters, but is {shown(on_average)}")
        self.correction, self.pipeline, self.warmup_steps = correction, chosen.pipeline, warmup_steps
        self._treatment = Treatment(check_correction(correction), check_max_norm(max_norm), on_average)
        options = (
            f"{chosen.to_json()}, {warmup_steps=}, {max_norm=}, {correction=}, {strict=}, {initial.facts}"
        )
        self._optimizer, self._is_resumed = optimizer, False
        check_optimizer(optimizer, "PipeSGD")
        choose = partial(initial.chooser, whole(chosen.pipeline), settles_at=warmup_steps)
        super().__init__(
            model, optimizer, chosen, group, timeout_s, ledger, strict, choose=choose, options=options
        )

    def _check_ranks(self) -> None:
        if self.correction != "none" and self.pipeline > 1:
            check_forward(self.model)

    def _lay_out(self) -> None:
        self._under_way = Pipeline(
            self.trained,
            self._optimizer,
            self.sync,
            self._treatment,
            lambda gradients: self._buckets_of(gradients, self.plan.bucket_nbytes),
        )

    @property
    def _in_flight_count(self) -> int:
        return len(self._under_way)

    def _before_layout(self) -> StepRecord:
        return self._under_way.apply_all_but(0)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        if self._is_resumed:
            check_in_flight(self.steps_done, len(self._under_way), self.exchange)
            self._is_resumed = False
        warms_up = self.steps_done < self.warmup_steps
        waits = self._under_way.apply_all_but(0 if warms_up else self.pipeline - 1)
        loss, correction_s = self._under_way.add(compute_loss, alone=warms_up)
        if warms_up:
            waits += self._under_way.apply_all_but(0)
        note_step(self._optimizer)
        return waits.within(perf_counter() - started, loss=loss, correction_s=correction_s)

    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first, and leave the pipeline empty; return the cost.

        The last averaged gradient stays in ``.grad``. The next step starts a new pipeline. An eager pipeline
        copies rank 0's buffers to all ranks. Raises what the exchange raised, ``LinkTimeoutError``, or what a
        strict ``step`` would raise; after a ``close`` that has dropped gradients, ``ExchangeError``.
        """
        if self.closed:
            self._check_whole()
            return StepRecord()
        started = perf_counter()
        waits = self._under_way.apply_all_but(0) + self.agree_on_buffers()
        self.sync.settle()
        self.sync.meter.raise_verdict()
        return waits.within(perf_counter() - started, steps=0)

    @contextmanager
    def evaluating(self) -> Iterator[StepRecord]:
        """Drain, and keep the model in evaluation mode within a ``with`` block.

        Every module returns to the mode that it had, also one that was frozen in evaluation mode. The value
        of the ``with`` is what the drain cost. All ranks drain together, even if only some of them evaluate
        then. Raises what ``drain`` raises.
        """
        drained = self.drain()
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            yield drained
        finally:
            for module, training in modes.items():
                module.training = training

    def check_replicas(self) -> None:
        """Compare all ranks' weights, buffers, and optimizer states, bit for bit, at any moment.

        All ranks call it together. Of buffers those that ``state_dict`` holds, but for the running statistics
        of normalisation layers, which are each rank's own while it trains. It waits for what is on the
        network and applies none of it.
        Raises ``StateError`` on every rank, naming the ranks that differ, and ``ExchangeError``.
        """
        self.check_open()
        self._under_way.settle()
        check_replicas(self.model, self.exchange, self._optimizer)

    def in_flight(self) -> list[InFlight]:
        """Return copies of the averaged gradients that are still to be applied, oldest first.

        Waits until none is on the network any more. Raises what the exchange raised, or ``LinkTimeoutError``.
        """
        return self._under_way.in_flight()

    def agree_on_buffers(self) -> StepRecord:
        """Copy rank 0's buffers, exactly, to all ranks, where updates are eager; return the cost.

        Those that a ``state_dict`` of the model holds. All ranks call it together; it waits for what is on
        the network. Raises ``ExchangeError``.
        """
        if not self._under_way.corrects:
            return StepRecord()
        self._under_way.settle()
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

    def _check_whole(self) -> None:
        """Raise ``ExchangeError`` if ``close`` has dropped gradients in flight."""
        if self.closed and self._in_flight_count:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: this {type(self).__name__} was closed with "
                f"{self._in_flight_count} gradients on their way, which are lost; call drain() or "
                "state_dict() before close()"
            )

    def _state(self, drained: bool) -> RankState:
        self._check_whole()
        way = self._under_way
        in_flight = way.in_flight()  # nothing is on the network from here on, so the residuals rest
        if not (drained or self.closed):
            self.agree_on_buffers()
        return replace(
            super()._state(drained), in_flight=in_flight, room=(self.pipeline, way.own_count, way.count)
        )

    def _adopt(self, saved: RankState) -> None:
        self._grow()
        self._under_way.settle()
        self._under_way.check_fits(saved.in_flight)
        super()._adopt(replace(saved, in_flight=()))
        self._is_resumed = saved.steps_done > 0
        self._under_way.resume(saved.in_flight)

    def _drop(self) -> None:
        self._under_way.resume(())
