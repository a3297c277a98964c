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

from gradwire.autotune import InitialPlan
from gradwire.autotune.settings import Auto, whole
from gradwire.codecs.spec import is_whole
from gradwire.errors import ExchangeError, add_note, refuse
from gradwire.pipe.correction import CORRECTIONS, check_correction, check_forward
from gradwire.pipe.pipeline import Pipeline, Treatment
from gradwire.plan import PlanLike
from gradwire.sync.checkpoint import InFlight, RankState
from gradwire.sync.flat.update import check_max_norm, note_step
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.replicas.broadcast import broadcast_buffers, count_buffers
from gradwire.sync.replicas.compare import check_in_flight, check_replicas
from gradwire.sync.trained import check_optimizer

_PIPELINE = 2  # enough to hide the network; more steps only add staleness


class PipeSGD(WorkerMethod):
    """Pipelined SGD: each step applies the average of K steps ago, while newer gradients are in flight.

    A ``PipeSGD`` opens its own connections to the group's other ranks, so that its traffic never mixes with
    the script's collectives. Between two calls, all ranks' weights have the same bits.

    Step t waits for the averaged gradient of step t-K, updates ``w[t] = w[t-1] - lr * mean(g[t-K])``,
    computes ``g[t]``, and passes it to the communication thread: as a whole after backward, or, if the plan
    has ``bucket_nbytes``, each bucket as soon as backward has computed it. Gradients of steps <= 0 are zero:
    the first K steps make no update at all, so they apply no momentum and no weight decay either. A step
    takes ``max(l_up + l_comp, l_comm)`` from K = 2 on (equation 4). A gradient is applied with the learning
    rate (and momentum or betas) of the step that computed it. Therefore, K = 1 gives the results of D-Sync
    with every learning rate schedule, bit for bit after a drain.

    With ``correction="eager"``, a rank computes ``g[t]`` at virtual weights: the masters, updated with the
    rank's own gradients of the steps in flight in place of their averages. The pipeline then learns about as
    fast as D-Sync (``correction.Eager``). Virtual weights exist only while ``compute_loss`` runs. With
    ``"none"``, a rank computes ``g[t]`` at ``w[t]``, as in the paper.

    Buffers of the model (a BatchNorm's running statistics) start with rank 0's values and then differ between
    ranks during training. An eager pipeline copies rank 0's buffers to all ranks in every ``drain``.
    If a parameter is unfrozen, the next step or ``load_state_dict`` first drains the pipeline. A frozen
    parameter still gets the gradients of earlier steps.

    Parameters
    ----------
    model
        A module with dense float32 parameters on one device; any other module raises ``TensorError``. Instead
        of a ``DistributedDataParallel``, which would also average gradients, pass the module that it wraps.
    optimizer
        A ``torch.optim`` optimizer of the model's parameters whose ``step`` needs no closure. ``PipeSGD``
        calls ``optimizer.step``; the script must not. The script calls the ``step`` of a learning rate
        scheduler as usual, once per training step.
    plan
        An argument of ``Plan.of``. The plan's ``pipeline`` is K, the number of steps in flight. A codec or
        its spec means a ring with a pipeline of 2. By default, or with ``"auto"`` or an ``Auto``, the run
        measures and chooses a plan with a pipeline of 2, and drains the pipeline before it changes to a
        different plan.
    warmup_steps
        The number of synchronous steps before the empty pipeline starts. The paper warms up for 5 epochs
        (AlexNet, ResNet), and not at all for small or convex models.
    max_norm
        The largest 2-norm of the averaged gradient over all parameters, to which longer gradients are scaled
        down, equally on all ranks; above 0. An eager pipeline also clips each local gradient to this norm.
    on_average
        A function that is called with the trained parameters when the averaged gradient is in their ``.grad``
        (None if no rank has used the parameter), before the clipping and the update. The function may change
        or replace any ``.grad`` (a new None means 0), in the same way on all ranks. An eager pipeline doesn't
        call the function with local gradients.
    correction
        ``"eager"`` or ``"none"``, the same on all ranks. ``"none"`` saves the time and memory of the local
        updates.
    strict, group, timeout_s, ledger
        See ``Method``.

    Raises
    ------
    SpecError
        If the plan, warm-up, norm, or timeout is invalid, if the model is a DDP model, if the optimizer has
        parameters that aren't the model's, or if updates are eager and the model's forward pass writes
        parameters.
    ExchangeError
        If ``torch.distributed`` isn't initialised, if this process isn't in the group, or if the other ranks
        don't arrive within the timeout or have different options.
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
            refuse("a whole number of at least 0 for warmup_steps", warmup_steps, "pass 0 for no warm-up")
        if not callable(on_average):
            refuse("a function of the parameters for on_average", on_average, "pass a function, or omit it")
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
        """Apply all gradients in flight, oldest first, and return the cost.

        Afterwards the pipeline is empty, the last averaged gradient is in ``.grad``, and the next step starts
        a new pipeline. An eager pipeline copies rank 0's buffers to all ranks. Raises the error of the
        exchange, ``LinkTimeoutError``, the errors of a strict ``step``, or ``ExchangeError`` after a
        ``close`` that dropped gradients.
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
        """Drain the pipeline, and run a ``with`` block with the model in evaluation mode.

        Afterwards every module returns to its previous mode, which may be evaluation. The value of the
        ``with`` is the cost of the drain. All ranks drain together, even if only some of them evaluate
        afterwards. Raises the errors of ``drain``.
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
        """Compare all ranks' weights, buffers, and optimizer states, bit for bit, at any time.

        All ranks must call ``check_replicas`` together. The compared buffers are those in ``state_dict``,
        except the running statistics of normalisation layers, which differ between ranks during training. The
        call waits for gradients in flight, but doesn't apply them. On every rank, raises ``StateError``,
        which names the ranks that differ, or ``ExchangeError`` if the comparison fails.
        """
        self.check_open()
        self._under_way.settle()
        check_replicas(self.model, self.exchange, self._optimizer)

    def in_flight(self) -> list[InFlight]:
        """Return copies of the averaged gradients that are still to be applied, oldest first.

        The call waits for their exchanges. Raises the error of an exchange, or ``LinkTimeoutError``.
        """
        return self._under_way.in_flight()

    def agree_on_buffers(self) -> StepRecord:
        """Copy rank 0's buffers exactly to all ranks if updates are eager, and return the cost.

        The copied buffers are those in the model's ``state_dict``. All ranks must call this method together.
        The call waits for gradients in flight. Raises ``ExchangeError``.
        """
        if not self._under_way.corrects:
            return StepRecord()
        self._under_way.settle()
        try:
            accounting = broadcast_buffers(self.model, self.exchange)
        except ExchangeError as error:
            add_note(
                error,
                "while copying rank 0's buffers to all ranks: all ranks must call drain, evaluating and "
                "state_dict together, with buffers of equal sizes",
            )
            raise
        count_buffers(self.ledger, accounting)
        return StepRecord.of_wait(accounting.total_s, accounting)

    def _check_whole(self) -> None:
        if self.closed and self._in_flight_count:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: close() dropped {self._in_flight_count} gradients in "
                f"flight of this {type(self).__name__}; call drain() or state_dict() before close()"
            )

    def _state(self, drained: bool) -> RankState:
        self._check_whole()
        way = self._under_way
        in_flight = way.in_flight()  # no exchange runs from here on, so residuals don't change
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
