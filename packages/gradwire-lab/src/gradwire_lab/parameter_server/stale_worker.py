"""A worker of a parameter server with bounded staleness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from time import perf_counter

import torch
from torch import nn

from gradwire.codecs import Codec
from gradwire.errors import ExchangeError, FrameError, LinkError, PayloadError, StateError
from gradwire.exchange.feedback import FeedbackFactory
from gradwire.exchange.norms import Norms
from gradwire.plan import PlanLike
from gradwire.sync.checkpoint import RankState
from gradwire.sync.deltas import over
from gradwire.sync.error_feedback import FlatResidual
from gradwire.sync.flat import FlatGradients, FlatWeights
from gradwire.sync.flat_buckets import WHOLE
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import ErrorSums
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.used_parameters import Reach, backward
from gradwire_lab.parameter_server.conversation import Conversation, Kind, Message
from gradwire_lab.parameter_server.ps_sync import check_star, check_weights, star_of, weights_through
from gradwire_lab.parameter_server.session import check_staleness


class StaleWorker(WorkerMethod):
    """Ranks 1..p: send the gradient up, and adopt the server's weights, waiting for them if too far ahead.

    ``drain`` waits until all workers have drained, and leaves all of them with the same weights. The state
    holds the weights, too, and exists only after a ``drain``. See ``StaleServer`` for the arguments.

    Attributes
    ----------
    lead
        How many steps this worker was ahead of the slowest at the server's last answer: 0 to ``staleness``.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: PlanLike,
        staleness: int,
        weight_codec: Codec | str | None = None,
        *,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        check_staleness(staleness)
        self.staleness, self.lead = staleness, 0
        chosen = star_of(plan)
        self.weight_codec = weights_through(weight_codec, chosen, ledger)
        self._drained = True
        super().__init__(model, None, chosen, group, timeout_s, ledger)

    def _check_ranks(self) -> None:
        check_star(self.exchange, "StaleWorker", serves=False)
        self._talk = Conversation(self.exchange.link, 0, self.plan, Lock())
        self._feedback = FeedbackFactory()

    def drain(self) -> StepRecord:
        """Wait until all workers drain, and adopt the weights that all of them then have.

        Without a step since the last drain it does nothing. Raises ``ExchangeError``.
        """
        if self._drained:
            return StepRecord()
        started = perf_counter()
        waits = self._ask(Kind.DRAIN, self.steps_done)
        self._drained = True
        return waits.within(perf_counter() - started, steps=0)

    def _state(self, drained: bool) -> RankState:
        self._check_drained()
        return replace(super()._state(drained), model=self.model.state_dict())

    def _adopt(self, saved: RankState) -> None:
        self._check_drained()
        check_weights(saved.model, self.model)
        super()._adopt(saved)
        self.model.load_state_dict(saved.model or {})

    def _check_drained(self) -> None:
        if not self._drained:
            raise StateError(
                f"rank {self.exchange.link.rank} is {self.steps_done} steps far and has not drained since, "
                "so the ranks have no moment in common; call drain() first, on all workers"
            )

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        loss = backward(compute_loss, self._gradients)
        self._drained = False
        waits = self._ask(Kind.PUSH, self.steps_done + 1)
        return waits.within(perf_counter() - started, loss=loss)

    def _ask(self, kind: Kind, clock: int) -> StepRecord:
        """Send a request and wait for the answer; the weights change once it is complete."""
        started = perf_counter()
        meter, is_push = self.sync.meter, kind is Kind.PUSH
        layout = self._buckets.layouts[0] if is_push and meter.measures(clock) else None
        lost: ErrorSums | None = None
        with self._failing_for_good(clock):
            message = Message(kind, clock, staleness=self.staleness, count=self._gradients.buffer.numel())
            if is_push:
                self._push(message, None if layout is None else layout.norms)
                lost = None if layout is None else meter.measured(layout)
            else:
                self._talk.tell(message)
            answer = self._hear_answer(clock)
            if answer.kind is Kind.WEIGHTS:
                weights = self._weights.buffer
                self._talk.take_in(weights, over(self.weight_codec, weights))
                self._weights.scatter()
        self.lead = clock - answer.slowest
        cost = self._talk.settle()
        nbytes = self._gradients.buffer.nbytes if is_push else 0
        self.sync.context.count(WHOLE, cost, cost.total_s, nbytes, lost)
        return StepRecord.of_wait(perf_counter() - started, cost)

    def _push(self, message: Message, norms: Norms | None) -> None:
        """Send the gradient, preceded by what backward has not reached, if anything."""
        codec, used, reached = self.exchange.plan.encoding, Reach(self._gradients), None
        if used.own:
            message = replace(message, kind=Kind.PART)
            reached = used.told(range(len(self._gradients.parameters)))
        residual = FlatResidual(self._buckets.residual, used.parts(self._buckets.residual))
        values = self._gradients.staged().floats()
        lost = residual.lend(values)
        try:
            feedback = self._feedback.of(codec, lost, norms)
            self._talk.hand_over(message, values, codec, feedback, reached)
        finally:
            residual.give_back()

    def _lay_out(self) -> None:
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._weights = FlatWeights(self.trained.parameters)
        self._buckets = self._buckets_of(self._gradients)

    def _before_layout(self) -> StepRecord:
        if not self._drained:
            raise StateError(
                f"rank {self.exchange.link.rank}: a parameter was unfrozen after step {self.steps_done}, but "
                "not right after a drain; unfreeze between drain() and the next step, on all ranks"
            )
        return StepRecord()

    def _hear_answer(self, clock: int) -> Message:
        while (answer := self._talk.hear()).kind is Kind.HELD:
            pass  # the server lives, and so waiting starts anew
        if answer.kind is Kind.GAVE_UP:
            whom = "by an error of its own" if answer.rank == 0 else f"since rank {answer.rank} failed"
            raise ExchangeError(f"the server has stopped, {whom}; look there")
        if answer.kind not in (Kind.WEIGHTS, Kind.SAME) or answer.clock != clock:
            raise FrameError(f"expected an answer to step {clock}, got {answer.kind.name} of {answer.clock}")
        return answer

    @contextmanager
    def _failing_for_good(self, clock: int) -> Iterator[None]:
        if self.exchange.failure is not None:
            raise ExchangeError(f"this worker failed before; make a new one ({self.exchange.failure})")
        try:
            yield
        except BaseException as error:
            reason = str(error) or type(error).__name__
            failure = f"rank {self.exchange.link.rank}, step {clock}: {reason}"
            self.exchange.close(failure)
            if isinstance(error, (ExchangeError, FrameError, LinkError, PayloadError)):
                raise ExchangeError(failure) from error
            raise
