"""Training methods of ranks that have batches; such a method may choose its plan by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import torch
from torch import nn

from gradwire.autotune.contract import whole
from gradwire.autotune.decision import Decision
from gradwire.autotune.pilot import Pilot
from gradwire.autotune.saved import State
from gradwire.autotune.settings import Auto
from gradwire.errors import ExchangeError, SpecError, shown
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.buckets import cut
from gradwire.sync.checkpoint import RankState
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, Method

T = TypeVar("T")


class WorkerMethod(Method):
    """A method on a rank that has batches: ``step(compute_loss)`` trains on one.

    ``meter`` measures what encoding loses of the gradients. At the end of a step it warns of parameters that
    keep losing most of theirs.

    Parameters
    ----------
    auto
        What to choose plans by while training runs, if at all; ``plan`` is that of the first steps then.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        plan: Plan,
        group: Group,
        timeout_s: float,
        ledger: Ledger | None,
        strict: bool = False,
        auto: Auto | None = None,
    ) -> None:
        super().__init__(model, optimizer, plan, group, timeout_s, ledger, strict)
        self._pilot = None if auto is None else self._new_pilot(auto)

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
        record = self._ready() + self._steer()
        stepped = self._step(compute_loss)
        if self._pilot is not None:
            self._pilot.took(stepped.wait_s)
        record += stepped
        self.steps_done += 1
        self.meter.end_step()
        return record

    @property
    def decisions(self) -> list[tuple[int, Decision]]:
        """With ``"auto"``: the steps before which all ranks took a plan, and what was decided."""
        return [] if self._pilot is None else self._pilot.decisions

    def _new_pilot(self, auto: Auto) -> Pilot:
        link, shapes = self.exchange.link, [each.shape for each in self.trained.parameters]
        rules, names = (
            whole(self.plan.pipeline).over(link),
            [name for name, _ in self.model.named_parameters()],
        )
        pilot = Pilot(auto, link.rank, link.world, shapes, link.timeout_s, rules=rules, names=names)
        pilot.note = None if self.ledger is None else self.ledger.decided
        return pilot

    def _state(self, drained: bool) -> RankState:
        auto = "" if self._pilot is None else self._pilot.state().to_json()
        return replace(super()._state(drained), auto=auto)

    def _adopt(self, saved: RankState) -> None:
        chosen = None if self._pilot is None or not saved.auto else State.from_json(saved.auto)
        super()._adopt(saved)
        self._go_on_with(chosen)

    def _go_on_with(self, chosen: State | None) -> None:
        """Let the pilot go on from there at once, with its plan: what is in flight was made for that one."""
        plan = None if self._pilot is None or chosen is None else self._pilot.load(chosen)
        if plan is not None and plan != self.plan:
            self._drop()
            self._follow(plan)

    def _follow(self, plan: Plan) -> StepRecord:
        """Exchange as ``plan`` says from now on, with nothing in flight before; return what that cost."""
        drained = self._before_growing()
        self.exchange.follow(plan)
        self.meter.judge(plan)
        self._lay_out()
        return drained

    def _drop(self) -> None:
        """Drop what is in flight."""

    def _steer(self) -> StepRecord:
        """Let the pilot of all ranks look at the run, and follow a plan that it chooses; return the cost."""
        if self._pilot is None:
            return StepRecord()
        started, drained = perf_counter(), StepRecord()
        chosen = self._pilot.begin(self.steps_done + 1, self.plan, self._ask_all)
        if chosen is not None and chosen != self.plan:
            drained = self._follow(chosen)
        return drained.within(perf_counter() - started, steps=0)

    def _ask_all(self, what: str, work: Callable[[Exchange], T]) -> T:
        """Do what the pilot asks with the exchange, which nothing else is using then."""
        self._settle()
        self.exchange.link.step = self.steps_done + 1
        try:
            return work(self.exchange)
        except ExchangeError as error:
            failure = f"{error} ({what} before step {self.steps_done + 1})"
            self.exchange.close(failure)  # the work may have used the link alone, and the peers wait
            raise ExchangeError(failure) from error

    def _settle(self) -> None:
        """Wait until nothing is on the network."""

    def _sample(self, gradients: FlatGradients) -> None:
        """Let the pilot have this rank's own gradient, if it wants this step's."""
        samples = None if self._pilot is None else self._pilot.samples
        if samples is None:
            return
        for bucket in cut(gradients.counts, samples.config.sampled_nbytes):
            shapes = [tuple(gradients.parameters[each].shape) for each in bucket.parameters]
            samples.add(shapes, self.meter.names(bucket.parameters), bucket.view(gradients.flat))

    @abstractmethod
    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch; the replicas have begun equal."""
