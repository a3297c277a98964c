"""What training methods have in common: they begin equal, step, drain, save, load and close."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import isfunction
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn

from gradwire.codecs.rules import check_names
from gradwire.costs import ExchangeCost
from gradwire.deferred import outside_inference
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import leave
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.sync.checkpoint import RankState, State, pack, unpack
from gradwire.sync.connect import check_timeout, connect, member_group
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.meter import MethodMeter
from gradwire.sync.replicas import begin_equal, broadcast_parameters, count_weights, differing
from gradwire.sync.residual import Residuals
from gradwire.sync.trained import Trained, check_extras, relaid

# Parameters that join while a method trains: all ranks take in the same ones, with the same weights.


def welcome(trained: Trained, exchange: Exchange, ledger: Ledger | None) -> ExchangeCost:
    """Let ``trained`` grow by all that ask for a gradient; they begin with rank 0's weights.

    All ranks call it before the same step, while no other exchange of the link is under way. Raises
    ``ExchangeError``, also where they do not train the same parameters.
    """
    newcomers = trained.grow()
    try:
        different = differing(trained.layout(), exchange)
    except ExchangeError as error:  # another rank may be at something else
        own = exchange.link.name_of(exchange.link.rank)
        raise ExchangeError(
            f"{own}: {len(newcomers)} parameters were unfrozen here, but "
            f"comparing them with the other ranks' failed ({error}); unfreeze the same ones on all ranks, "
            "before the same step"
        ) from error
    if different is not None:
        raise ExchangeError(
            f"rank {exchange.link.rank}: all ranks train the same parameters, but those of {different}; "
            "unfreeze the same ones on all ranks, before the same step"
        )
    if not newcomers:
        return ExchangeCost()
    accounting = broadcast_parameters(newcomers, exchange)
    count_weights(ledger, accounting)
    return accounting


Group = dist.ProcessGroup | Link | None
"""Whom a method trains with: a group of ``torch.distributed``, a link, or, where it is None, the world."""


class Method(ABC):
    """One rank's side of a training method; all ranks make the same calls in the same order.

    Replicas never begin different: the first step begins with ``synchronise()`` unless it was called before.
    A parameter that is unfrozen, or that model and optimizer got since, takes part from the next step on,
    with rank 0's weights; all ranks do so before the same step. One that is frozen, or that backward reaches
    on no rank, has ``.grad`` None in the update, as in plain torch.

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
        Counts every exchange by its bucket and gets the end of every step, if there is one; the caller's.
    strict
        Whether a step raises ``LossyError`` on all ranks, instead of a warning on one, where encoding keeps
        taking most of a parameter's gradient away; the same on all ranks. The update is done, and the method
        can go on.

    Attributes
    ----------
    residuals
        What this rank's encodings lost, where the plan keeps it.
    steps_done
        How many steps were taken.
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
    ) -> None:
        name = type(self).__name__
        check_extras(name, ledger, strict)
        check_timeout(timeout_s)
        self.trained = Trained(model, optimizer, name)
        check_names(plan.rules, (each for each, _ in model.named_parameters()))
        self.model, self.ledger = model, ledger
        self.steps_done, self.closed = 0, False
        self._synchronised = False
        self._laid_out: FlatGradients | None = None
        link = group if isinstance(group, Link) else _connect(group, timeout_s, name, plan)
        self._own_link = None if link is group else link
        try:
            self.exchange = Exchange(link, plan)
            link.step = 0
            self.residuals = Residuals(plan, link.rank, link.world)
            self.meter = MethodMeter(model, self.exchange, ledger, optimizer, strict)
            self._check_ranks()
            self._lay_out()
        except BaseException:
            self._close_own_link()
            raise

    @property
    def plan(self) -> Plan:
        """How gradients are exchanged."""
        return self.exchange.plan

    @outside_inference
    def synchronise(self) -> StepRecord:
        """Adopt rank 0's weights and buffers, exactly; all ranks call it together.

        Raises ``TensorError`` or ``ExchangeError``.
        """
        self.check_open()
        drained = self.drain()
        started, self.exchange.link.step = perf_counter(), self.steps_done
        accounting = begin_equal(self.model, self.exchange, self.ledger)
        self._synchronised = True
        return drained + StepRecord.of_wait(accounting.total_s, accounting).within(
            perf_counter() - started, steps=0
        )

    @outside_inference
    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first; return what that cost.

        Call it before an evaluation, a checkpoint and the end.
        """
        return StepRecord()

    @outside_inference
    def state_dict(self, *, drain: bool = False) -> State:
        """Return what a checkpoint needs beside the states of model, optimizer and scheduler.

        With ``"auto"`` it has what was decided, too. Every rank's is its own; ``gradwire.redivide``
        makes states for another number of ranks. What
        is in flight is kept as it is, and the method goes on as if nothing had been saved. With ``drain`` it
        is applied first. All ranks call it together; take the states of model and optimizer after this call.

        Returns
        -------
        dict
            Flat: texts and tensors on the CPU, as ``gradwire.sync.checkpoint`` tells.

        Raises
        ------
        ExchangeError
            What the exchange of a gradient in flight raised.
        """
        if drain:
            self.drain()
        return pack(self._state(drain))

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called on this rank, dropping what is in flight here.

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

        Raises ``LinkTimeoutError`` if a thread does not end.
        """
        if not self.closed:
            self.closed = True
            try:
                self._end()
            finally:
                self._close_own_link()

    def abort(self) -> None:
        """Close after a failure, without sending what is still queued."""
        self._cancel()
        self.close()

    def _ready(self) -> StepRecord:
        """Let a step begin: with equal replicas and all that ask for a gradient; return what that cost."""
        self.check_open()
        start = StepRecord() if self._synchronised else self.synchronise()
        return start + self._grow()

    def _grow(self) -> StepRecord:
        """Let parameters that ask for a gradient since the last step take part; return what that cost."""
        if not self.trained.grown():
            return StepRecord()
        drained = self._before_growing()
        started, self.exchange.link.step = perf_counter(), self.steps_done + 1
        accounting = welcome(self.trained, self.exchange, self.ledger)
        self.meter.follow(self.trained.parameters)
        self._lay_out()
        return drained + StepRecord.of_wait(accounting.total_s, accounting).within(
            perf_counter() - started, steps=0
        )

    def _before_growing(self) -> StepRecord:
        """Finish, and give up, what is laid out as the parameters were; return what that cost."""
        return self.drain()

    def _residual_of(self, gradients: FlatGradients) -> torch.Tensor | None:
        """Return the residual of ``gradients``; what had a place in the last ones keeps its own."""
        residual = relaid(self.residuals, gradients, self._laid_out)
        self._laid_out = gradients
        return residual

    def _check_ranks(self) -> None:  # noqa: B027 - not every method has something to refuse
        """Refuse a place in a world that does not fit; nothing is laid out yet."""

    @abstractmethod
    def _lay_out(self) -> None:
        """Make what is laid out as ``trained.parameters``; nothing is under way."""

    def _state(self, drained: bool) -> RankState:  # noqa: ARG002 - for pipelines
        """Return what a checkpoint keeps of this rank."""
        link, kept = self.exchange.link, self.residuals.state_dict()["residuals"]
        name, plan = type(self).__name__, self.plan.to_json()
        return RankState(link.rank, link.world, self.steps_done, name, plan, residuals=kept)

    def _adopt(self, saved: RankState) -> None:
        """Go on from there. Raises ``StateError``, and changes nothing, for what does not fit."""
        if saved.in_flight:
            raise StateError(
                f"a {type(self).__name__} has nothing in flight, but the state has {len(saved.in_flight)} "
                "gradients; drain before saving, or resume with PipeSGD"
            )
        self.residuals.load_state_dict(saved.of_residuals())
        self._resume_at(saved.steps_done)

    def _resume_at(self, steps_done: int) -> None:
        self.steps_done = self.exchange.link.step = steps_done
        self._synchronised = self._synchronised or steps_done > 0  # equal when they were saved

    def _cancel(self) -> None:  # noqa: B027 - not every method has a thread
        """Drop what has not been sent."""

    def _end(self) -> None:  # noqa: B027 - as above
        """Finish what is on the network, apply none of it, and end threads."""

    def _close_own_link(self) -> None:
        if self._own_link is not None:
            leave(self._own_link, None)

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.steps_done} steps"
        pipeline = self.exchange.plan.pipeline
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


def _connect(group: dist.ProcessGroup | None, timeout_s: float, method: str, plan: Plan) -> Link:
    chosen = member_group(group, f"make a {method}", f", or give {method} a Link as its group")
    ending = f"; do all ranks of the group make a {method}?"
    return connect(chosen, timeout_s, ExchangeError, ending, tos=plan.tos)
