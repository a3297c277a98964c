"""The frame of all training methods: ranks begin equal, take steps, drain, save, load and close."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from inspect import isfunction
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from gradwire.codecs.rules import check_names
from gradwire.deferred import outside_inference
from gradwire.errors import ExchangeError, SpecError, StateError, shown
from gradwire.exchange import Exchange
from gradwire.exchange.frames import leave
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.sync.checkpoint import RankState, State, pack, unpack
from gradwire.sync.connect import check_timeout, connect, member_group
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.flat import FlatGradients
from gradwire.sync.flat_buckets import FlatBuckets
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.counts import PlanChoice, StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.observe import NO_CHOOSER, PlanChooser
from gradwire.sync.replicas import begin_equal, check_options, welcome
from gradwire.sync.residual import AUTO, Residuals
from gradwire.sync.trained import Trained, check_extras, relaid
from gradwire.sync.views import Layouts
from gradwire.version import version

Group = dist.ProcessGroup | Link | None
"""The ranks of a method: a group of ``torch.distributed``, a link, or, where it is None, the world."""


class Method(ABC):
    """One rank's side of a training method; all ranks make the same calls in the same order.

    Replicas never begin different: the first step begins with ``synchronise()`` unless it was called before.
    A parameter that is unfrozen, or that model and optimizer got since, takes part from the next step on,
    with rank 0's weights; all ranks do so before the same step. A parameter that is frozen, or that no rank's
    backward uses, has ``.grad`` None in the update, as in plain torch.

    As a context manager it drains and closes at the end of the block, and only closes when the block raised.

    Parameters
    ----------
    model
        Dense float32 parameters on one device. Raises ``TensorError`` otherwise.
    optimizer
        Theirs, with a ``step`` that needs no closure; None at a worker of a server.
    plan
        How gradients are exchanged; the same on all ranks.
    group
        A process group, whose ranks this one connects with; it closes those connections. Or a ``Link``, which
        stays the caller's.
    timeout_s
        How long any single wait for a peer lasts before it is an error, where the group is no link.
    ledger
        Counts every exchange by its bucket, and the steps; the caller's.
    strict
        Whether a step raises ``LossyError`` on all ranks, instead of a warning on one, where encoding keeps
        taking most of a parameter's gradient away; the same on all ranks. The update is done, and the method
        can go on.
    choose
        Returns the chooser of each step's plan for these parameters; ``plan`` is that of the first steps.
    options
        A text that must be equal on all ranks; empty: it is not compared.

    Attributes
    ----------
    sync, exchange
        What averages the gradients, and what exchanges weights and all else between steps.
    residuals
        The encoding errors of this rank, where the plan keeps them.
    closed
        Whether ``close`` was called.
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Let the public calls of every method make ordinary tensors within ``torch.inference_mode``, too."""
        super().__init_subclass__(**options)
        for name, own in vars(cls).items():
            if isfunction(own) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, outside_inference(own))

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        plan: Plan,
        group: Group,
        timeout_s: float,
        ledger: Ledger | None,
        strict: bool = False,
        *,
        choose: Callable[[Iterable[tuple[str, Parameter]]], PlanChooser] | None = None,
        options: str = "",
    ) -> None:
        name = type(self).__name__
        check_extras(name, ledger, strict)
        check_timeout(timeout_s)
        self.trained = Trained(model, optimizer, name)
        check_names(plan.rules, (each for each, _ in model.named_parameters()))
        self.model, self.ledger, self.closed = model, ledger, False
        self._chooser = NO_CHOOSER if choose is None else choose(model.named_parameters())
        self._groups_of, self._synchronised = optimizer, False
        self._laid_out: FlatGradients | None = None
        link = group if isinstance(group, Link) else _connect(group, timeout_s, name, plan)
        try:
            context = SyncContext(
                Exchange(link, plan),
                SyncOptions(timeout_s, strict=strict),
                ledger,
                model=f"this {name}",
                remedy="make a new one",
                owns_link=link is not group,
                fails_late=True,
            )
            self.residuals = Residuals(plan, link.rank, link.world)
            self.sync = GradientSync(context, Layouts(()), self.residuals, [self._chooser])
            self.exchange = context.exchange
            if options:
                check_options(f"{options}, gradwire {version()}", self.exchange)
            self._check_ranks()
            self._lay_out()
        except BaseException:
            if link is not group:
                leave(link, None)
            raise

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.exchange.plan

    @property
    def steps_done(self) -> int:
        """The number of steps that the run has taken."""
        return self.sync.context.steps_done

    @outside_inference
    def synchronise(self) -> StepRecord:
        """Adopt rank 0's weights and buffers, exactly; all ranks call it together.

        Raises ``TensorError`` or ``ExchangeError``.
        """
        self.check_open()
        drained = self.drain()
        started, self.exchange.link.step = perf_counter(), self.steps_done
        cost = begin_equal(self.model, self.exchange, self.ledger)
        self._synchronised = True
        return drained + StepRecord.of_wait(cost.total_s, cost).within(perf_counter() - started, steps=0)

    @outside_inference
    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first; return the cost.

        Call it before an evaluation, a checkpoint and the end.
        """
        return StepRecord()

    @outside_inference
    def state_dict(self, *, drain: bool = False) -> State:
        """Return the method's state, beside those of model, optimizer and scheduler.

        Every rank's is its own; ``gradwire.redivide`` makes states for another number of ranks. With
        ``"auto"`` it has the decisions, too. Gradients in flight are kept as they are, and the method goes on
        as if nothing had been saved; with ``drain`` they are applied first. All ranks call it together; take
        the states of model and optimizer after this call.

        Returns
        -------
        dict
            Flat: texts and tensors on the CPU, as ``gradwire.sync.checkpoint`` describes.

        Raises
        ------
        ExchangeError
            If the exchange of a gradient in flight failed.
        """
        if drain:
            self.drain()
        return pack(self._state(drain))

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called on this rank, dropping gradients in flight here.

        Model, optimizer and scheduler load their own states, in any order with this one. All ranks load.
        Raises ``StateError``, and changes nothing, for the state of another rank, another world or another
        model; ``gradwire.sync.checkpoint.redivide`` makes states for another world.
        """
        self.check_open()
        link = self.exchange.link
        self._adopt(unpack(state, link.rank, link.world, type(self).__name__))

    def check_open(self) -> None:
        """Raise ``ExchangeError`` if ``close`` was called."""
        if self.closed:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: this {type(self).__name__} is closed; make a new one"
            )

    @outside_inference
    def close(self) -> None:
        """Give up threads and connections of the method's own; may be called twice. No step follows.

        Gradients in flight are finished on the network, and not applied. Raises ``LinkTimeoutError`` if a
        thread does not end.
        """
        if not self.closed:
            self.closed = True
            self.sync.close()

    def abort(self) -> None:
        """Close after a failure, without sending what is still queued."""
        self.sync.cancel()
        self.close()

    def _ready(self) -> StepRecord:
        """Make replicas equal, and take new parameters in, before a step; return the cost."""
        self.check_open()
        start = StepRecord() if self._synchronised else self.synchronise()
        return start + self._grow()

    def _grow(self) -> StepRecord:
        """Let parameters that ask for a gradient since the last step take part; return the cost."""
        if not self.trained.grown():
            return StepRecord()
        drained = self._before_layout()
        self.sync.settle()
        started, self.exchange.link.step = perf_counter(), self.steps_done + 1
        cost = welcome(self.trained, self.exchange, self.ledger)
        self._lay_out()
        return drained + StepRecord.of_wait(cost.total_s, cost).within(perf_counter() - started, steps=0)

    def _before_layout(self) -> StepRecord:
        """Finish what is laid out as parameters and plan were; return the cost."""
        return self.drain()

    def _buckets_of(self, gradients: FlatGradients, bucket_nbytes: int | None = None) -> FlatBuckets:
        """Return the buckets of gradients that are laid out anew; parameters keep their residuals."""
        residual = relaid(self.residuals, gradients, self._laid_out)
        self._laid_out = gradients
        name_of = {id(each): name for name, each in self.model.named_parameters()}
        names = [name_of[id(each)] for each in gradients.parameters]
        param_groups = [] if self._groups_of is None else self._groups_of.param_groups
        group_of = {id(each): number for number, group in enumerate(param_groups) for each in group["params"]}
        groups = [group_of.get(id(each)) for each in gradients.parameters]
        self.sync.lay_out(Layouts(names))
        return FlatBuckets(self.sync, gradients, names, groups, residual, bucket_nbytes)

    def _check_ranks(self) -> None:  # noqa: B027 - not every method has something to refuse
        """Refuse a place in a world that does not fit; nothing is laid out yet."""

    @abstractmethod
    def _lay_out(self) -> None:
        """Lay gradients out for the parameters that are trained and the plan; nothing is under way."""

    def _state(self, drained: bool) -> RankState:  # noqa: ARG002 - for pipelines
        """Return the state of this rank for a checkpoint."""
        link, residuals = self.exchange.link, self.residuals.state_dict()["residuals"]
        name, plan = type(self).__name__, self.plan.to_json()
        auto = self._chooser.state().get(AUTO, "")
        return RankState(link.rank, link.world, self.steps_done, name, plan, residuals=residuals, auto=auto)

    def _adopt(self, saved: RankState) -> None:
        """Go on from there. Raises ``StateError``, and changes nothing, for what does not fit."""
        if saved.in_flight:
            raise StateError(
                f"a {type(self).__name__} has nothing in flight, but the state has {len(saved.in_flight)} "
                "gradients; drain before saving, or resume with PipeSGD"
            )
        residuals = saved.of_residuals()
        self.residuals.check_state(residuals)
        self._chooser.load({AUTO: saved.auto} if saved.auto else {})
        self.residuals.load_state_dict(residuals)
        self.sync.resume(saved.steps_done)
        self._synchronised = self._synchronised or saved.steps_done > 0  # equal when they were saved

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.steps_done} steps"
        pipeline = self.plan.pipeline
        under_way = f", pipeline of {pipeline}" if pipeline > 1 else ""
        return f"<{type(self).__name__}{under_way}, {state}, by {self.exchange!r}>"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
            return
        try:
            if not self.closed:  # it may have been on purpose, with gradients still on their way
                self.drain()
        finally:
            self.close()


class WorkerMethod(Method):
    """A method on a rank that has batches: ``step(compute_loss)`` trains on one.

    At the end of a step it warns of parameters that keep losing most of their gradients to encoding.
    """

    def step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch.

        Parameters
        ----------
        compute_loss
            Runs the forward pass and returns a scalar, the mean over this rank's batch. Its gradient is
            averaged over the workers, which is the gradient of the whole batch where all ranks have batches
            of equal size.

        Returns
        -------
        StepRecord
            Loss on this rank's batch, seconds and bytes.

        Raises
        ------
        SpecError, TensorError
            For what is no function, for one that returns no loss, and for an optimizer that has got
            parameters which are not the model's. Nothing has been sent.
        ExchangeError
            A peer is gone, too slow or sent something invalid; the message names rank, peer and step.
        LossyError
            Where the method is strict, on all ranks after the same step.
        """
        self.check_open()
        if not callable(compute_loss):
            raise SpecError(
                f"step calls a function that computes the loss, but got {shown(compute_loss)}; write "
                "step(lambda: loss_of(model(x), y)), which leaves forward and backward to it"
            )
        record = self._ready() + self._begin()
        stepped = self._step(compute_loss)
        self.sync.finish(self.steps_done + 1 - self._in_flight_count, waited_s=stepped.wait_s)
        return record + stepped

    @property
    def decisions(self) -> list[tuple[int, PlanChoice]]:
        """With ``"auto"``: the steps before which all ranks took a plan, and the decisions."""
        return [*self._chooser.decisions]

    @property
    def _in_flight_count(self) -> int:
        """The number of steps whose gradients are not applied yet."""
        return 0

    def _begin(self) -> StepRecord:
        """Let all ranks choose the plan of the step, and follow it; return the cost."""
        started, present, drained = perf_counter(), self.plan, StepRecord()
        self.sync.begin()
        if self.plan != present:
            drained = self._before_layout()
            self._lay_out()
        return drained.within(perf_counter() - started, steps=0)

    def _adopt(self, saved: RankState) -> None:
        super()._adopt(saved)
        plan = self._chooser.loaded_plan
        if plan is not None and plan != self.plan:  # gradients in flight were made for it
            self._drop()
            self._before_layout()
            self.sync.follow(plan)
            self._lay_out()

    def _drop(self) -> None:
        """Drop gradients in flight."""

    @abstractmethod
    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch; the replicas have begun equal."""


def _connect(group: dist.ProcessGroup | None, timeout_s: float, method: str, plan: Plan) -> Link:
    chosen = member_group(group, f"make a {method}", f", or give {method} a Link as its group")
    ending = f"; do all ranks of the group make a {method}?"
    return connect(chosen, timeout_s, ExchangeError, ending, tos=plan.tos)
