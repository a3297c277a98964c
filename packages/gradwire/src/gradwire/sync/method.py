"""The base classes of training methods: equal replicas, steps, draining, checkpoints, and closing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from inspect import isfunction
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from gradwire.codecs.rules import check_names
from gradwire.deferred import outside_inference
from gradwire.errors import ExchangeError, SpecError, StateError, shown
from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import NO_CHOOSER, PlanChooser
from gradwire.sync.bucket.residual import AUTO, Residuals
from gradwire.sync.checkpoint import RankState, State, pack, unpack
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.flat.buckets import FlatBuckets, lay_out_residual
from gradwire.sync.flat.gradients import FlatGradients
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.group import check_timeout, connect, member_group
from gradwire.sync.layout import Layouts
from gradwire.sync.ledger.counts import PlanChoice, StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.broadcast import begin_equal
from gradwire.sync.replicas.compare import check_options
from gradwire.sync.trained import TrainedParameters, check_extras, welcome
from gradwire.version import version

if TYPE_CHECKING:
    from typing_extensions import Self

Group = dist.ProcessGroup | Link | None
"""The ranks of a method: a group of ``torch.distributed``, a link, or None for the world."""


class Method(ABC):
    """A training method on one rank; all ranks make the same calls in the same order.

    Replicas always begin equal: the first step calls ``synchronise()`` unless the caller did. A parameter
    that is unfrozen, or added to model and optimizer, is trained from the next step on, starting with rank
    0's weights; all ranks add it before the same step. A parameter that is frozen, or that no rank's backward
    uses, has ``.grad`` None in the update, as in plain torch.

    As a context manager, it drains and closes at the end of the block, or only closes if the block raised.

    Parameters
    ----------
    model
        A model with dense float32 parameters on one device. Raises ``TensorError`` otherwise.
    optimizer
        The model's optimizer, whose ``step`` needs no closure; None at a worker of a server.
    plan
        The plan of the gradients' exchange; the same on all ranks.
    group
        A process group, or a ``Link``. The method opens connections to the ranks of a process group, and
        closes them; the caller closes a link.
    timeout_s
        The limit for any single wait for a peer, in seconds, unless the group is a link.
    ledger
        A ledger, owned by the caller, that counts the steps and every exchange by its bucket.
    strict
        Whether a step raises ``LossyError`` on all ranks, instead of a warning on one rank, if encoding
        errors repeatedly exceed half of a parameter's gradient; the same on all ranks. The error follows the
        update, and training can continue.
    choose
        A function that receives the named parameters, and returns the chooser of each step's plan; ``plan``
        is the plan of the first steps.
    options
        Options as a text that must be equal on all ranks; not compared if empty.

    Attributes
    ----------
    sync, exchange
        The object that averages gradients, and the one that exchanges weights and other data between steps.
    residuals
        The encoding errors of this rank, if the plan keeps them.
    closed
        Whether ``close`` was called.
    """

    def __init_subclass__(cls, **options: object) -> None:
        """Make the public calls of every method create ordinary tensors, even in ``torch.inference_mode``."""
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
        self.trained = TrainedParameters(model, optimizer, name)
        check_names(plan.rules, (each for each, _ in model.named_parameters()))
        self.model, self.ledger, self.closed = model, ledger, False
        self._chooser = NO_CHOOSER if choose is None else choose(model.named_parameters())
        self._groups_of, self._synchronised = optimizer, False
        self._laid_out: FlatGradients | None = None
        link, members = (group, None) if isinstance(group, Link) else _connect(group, timeout_s, name, plan)
        try:
            context = SyncContext(
                Exchange(link, plan),
                SyncOptions(timeout_s, strict=strict),
                ledger,
                members,
                model=f"this {name}",
                remedy=f"create a new {name}",
                owns_link=link is not group,
                fails_late=True,
            )
            self.exchange, self.residuals = context.exchange, Residuals(plan, link.rank, link.world)
            self.sync = GradientSync(context, Layouts(()), self.residuals, [self._chooser])
            if options:
                check_options(f"{options}, gradwire {version()}", self.exchange)
            self._check_ranks()
            self._lay_out()
            self._chooser.prepare(self.sync)
        except BaseException:
            if hasattr(self, "sync"):
                self.sync.end()
            elif link is not group:
                link.close()
            raise

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.exchange.plan

    @property
    def steps_done(self) -> int:
        """The number of completed steps of the run."""
        return self.sync.context.steps_done

    @outside_inference
    def synchronise(self) -> StepRecord:
        """Copy rank 0's weights and buffers, exactly, to all ranks; all ranks call this together.

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
        """Apply all gradients in flight, oldest first; return the cost.

        Call it before an evaluation, before a checkpoint, and at the end.
        """
        return StepRecord()

    @outside_inference
    def state_dict(self, *, drain: bool = False) -> State:
        """Return the method's state, to save with the states of model, optimizer, and scheduler.

        Each rank has its own state; ``gradwire.redivide`` makes states for a different number of ranks. With
        ``"auto"``, the state includes the decisions. The state includes gradients in flight, and training is
        unaffected; with ``drain``, they are applied first. All ranks call this together; get the states of
        model and optimizer after this call.

        Returns
        -------
        dict
            A flat dictionary of strings and CPU tensors, described in ``gradwire.sync.checkpoint``.

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
        """Resume from a state that ``state_dict`` returned on this rank, dropping gradients in flight.

        Model, optimizer, and scheduler load their own states, before or after this one. All ranks load their
        states. Raises ``StateError``, and changes nothing, for the state of a different rank, world size, or
        model; ``gradwire.redivide`` makes states for a different world size.
        """
        self.check_open()
        link = self.exchange.link
        self._adopt(unpack(state, link.rank, link.world, type(self).__name__))

    def check_open(self) -> None:
        """Raise ``ExchangeError`` if ``close`` was called."""
        if self.closed:
            raise ExchangeError(
                f"rank {self.exchange.link.rank}: this {type(self).__name__} is closed; "
                f"create a new {type(self).__name__}"
            )

    @outside_inference
    def close(self) -> None:
        """End the method's thread and close its connections; may be called twice.

        No step may follow. Exchanges of gradients in flight are finished, but the gradients are not applied.
        Raises ``LinkTimeoutError`` if the thread does not end.
        """
        if not self.closed:
            self.closed = True
            self.sync.close()

    def abort(self) -> None:
        """Cancel queued exchanges and close, after a failure."""
        self.sync.cancel()
        self.close()

    def _ready(self) -> StepRecord:
        """Make replicas equal, and add new parameters, before a step; return the cost."""
        self.check_open()
        start = StepRecord() if self._synchronised else self.synchronise()
        return start + self._grow()

    def _grow(self) -> StepRecord:
        """Add the parameters that have been unfrozen or added since the last step; return the cost."""
        if not self.trained.grown():
            return StepRecord()
        drained = self._before_layout()
        self.sync.settle()
        started, self.exchange.link.step = perf_counter(), self.steps_done + 1
        cost = welcome(self.trained, self.exchange, self.ledger)
        self._lay_out()
        return drained + StepRecord.of_wait(cost.total_s, cost).within(perf_counter() - started, steps=0)

    def _before_layout(self) -> StepRecord:
        """Finish the gradients in flight, before parameters or plan change their layout; return the cost."""
        return self.drain()

    def _buckets_of(self, gradients: FlatGradients, bucket_nbytes: int | None = None) -> FlatBuckets:
        """Return the buckets of gradients in a new layout; parameters keep their residuals."""
        residual = lay_out_residual(self.residuals, gradients, self._laid_out)
        self._laid_out = gradients
        name_of = {id(each): name for name, each in self.model.named_parameters()}
        names = [name_of[id(each)] for each in gradients.parameters]
        param_groups = [] if self._groups_of is None else self._groups_of.param_groups
        group_of = {id(each): number for number, group in enumerate(param_groups) for each in group["params"]}
        groups = [group_of.get(id(each)) for each in gradients.parameters]
        self.sync.lay_out(Layouts(names))
        return FlatBuckets(self.sync, gradients, names, groups, residual, bucket_nbytes)

    def _check_ranks(self) -> None:  # noqa: B027 - not every method refuses a world
        """Check that the method supports this rank and world, before ``_lay_out``; raise an error if not."""

    @abstractmethod
    def _lay_out(self) -> None:
        """Lay out the gradients of the trained parameters for the plan, between two exchanges."""

    def _state(self, drained: bool) -> RankState:  # noqa: ARG002 - for pipelines
        link, residuals = self.exchange.link, self.residuals.state_dict()["residuals"]
        name, plan, auto = type(self).__name__, self.plan.to_json(), self._chooser.state().get(AUTO, "")
        return RankState(link.rank, link.world, self.steps_done, name, plan, residuals=residuals, auto=auto)

    def _adopt(self, saved: RankState) -> None:
        """Resume from ``saved``. Raises ``StateError``, and changes nothing, if it does not match."""
        if saved.in_flight:
            raise StateError(
                f"{type(self).__name__}: expected a state without gradients in flight, got one with "
                f"{len(saved.in_flight)}; drain before saving, or resume with PipeSGD"
            )
        residuals = saved.of_residuals()
        self.residuals.check_state(residuals)
        self._chooser.load({AUTO: saved.auto} if saved.auto else {})
        self.residuals.load_state_dict(residuals)
        self.sync.resume(saved.steps_done)
        self._synchronised = self._synchronised or saved.steps_done > 0  # saved replicas are equal

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
            if not self.closed:  # the caller may have closed the method with gradients in flight
                self.drain()
        finally:
            self.close()


class WorkerMethod(Method):
    """A training method on a rank with batches: ``step(compute_loss)`` trains on one batch.

    At the end of a step, the method warns of parameters with repeated large encoding errors.
    """

    def step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch.

        Parameters
        ----------
        compute_loss
            A function that runs the forward pass and returns a scalar, the mean loss over this rank's batch.
            The loss's gradient is averaged over the workers, which gives the gradient of the whole batch if
            all ranks' batches have the same size.

        Returns
        -------
        StepRecord
            The loss on this rank's batch, and the seconds and bytes of the step.

        Raises
        ------
        SpecError, TensorError
            If ``compute_loss`` is not a function or returns no loss, or if the optimizer has parameters
            outside of the model. Nothing has been sent.
        ExchangeError
            If a peer is gone, is too slow or sent invalid data; the message names rank, peer and step.
        LossyError
            If the method is strict, on all ranks after the same step.
        """
        self.check_open()
        if not callable(compute_loss):
            raise SpecError(
                f"step: expected a function that computes the loss, got {shown(compute_loss)}; call, for "
                "example, step(lambda: loss_of(model(x), y))"
            )
        record = self._ready() + self._begin()
        stepped = self._step(compute_loss)
        self.sync.finish(self.steps_done + 1 - self._in_flight_count, waited_s=stepped.wait_s)
        return record + stepped

    @property
    def decisions(self) -> list[tuple[int, PlanChoice]]:
        """The decisions of ``"auto"``, each with the first step that uses its plan."""
        return [*self._chooser.decisions]

    @property
    def _in_flight_count(self) -> int:
        """The number of steps whose gradients are not applied yet."""
        return 0

    def _begin(self) -> StepRecord:
        """Begin a step, and switch to the plan that all ranks choose for it; return the cost."""
        started, present, drained = perf_counter(), self.plan, StepRecord()
        self.sync.begin()
        if self.plan != present:
            drained = self._before_layout()
            self._lay_out()
        return drained.within(perf_counter() - started, steps=0)

    def _adopt(self, saved: RankState) -> None:
        super()._adopt(saved)
        plan = self._chooser.loaded_plan
        if plan is not None and plan != self.plan:  # saved gradients in flight have the layout of ``plan``
            self._drop()
            self._before_layout()
            self.sync.follow(plan)
            self._lay_out()

    def _drop(self) -> None:
        """Drop gradients in flight."""

    @abstractmethod
    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch, after the replicas have been made equal."""


def _connect(
    group: dist.ProcessGroup | None, timeout_s: float, method: str, plan: Plan
) -> tuple[Link, dist.ProcessGroup]:
    chosen = member_group(group, f"create a {method}", f", or pass {method} a Link as its group")
    ending = f"; create a {method} on all ranks of the group"
    return connect(chosen, timeout_s, ExchangeError, ending, tos=plan.tos), chosen
