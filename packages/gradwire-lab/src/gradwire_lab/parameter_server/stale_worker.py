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
from gradwire.sync.flat.backward import backward
from gradwire.sync.flat.buckets import WHOLE, UsedParameters
from gradwire.sync.flat.gradients import FlatGradients, FlatWeights
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import ErrorSums
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.replicas.deltas import over
from gradwire_lab.parameter_server.conversation import Conversation, Kind, Message
from gradwire_lab.parameter_server.ps_sync import check_star, check_weights, star_of, weights_through
from gradwire_lab.parameter_server.session import check_staleness


class StaleWorker(WorkerMethod):
    """A worker (ranks 1..p) that pushes gradients and pulls weights, and waits if it is too far ahead.

    ``drain`` waits until all workers have drained, and gives all workers the same weights. The state includes
    the weights, and is available only after a ``drain``. See ``StaleServer`` for the arguments.

    Attributes
    ----------
    lead
        The number of steps that this worker was ahead of the slowest worker at the server's last answer, from
        0 to ``staleness``.
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
        """Wait until all workers drain, and adopt the same weights; idempotent. Raises ``ExchangeError``."""
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
                f"expected a drained worker, got rank {self.exchange.link.rank} undrained after step "
                f"{self.steps_done}; call drain() on all workers first"
            )

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        loss = backward(compute_loss, self._gradients)
        self._drained = False
        waits = self._ask(Kind.PUSH, self.steps_done + 1)
        return waits.within(perf_counter() - started, loss=loss)

    def _ask(self, kind: Kind, clock: int) -> StepRecord:
        """Send a request, wait for the answer, and adopt the answer's weights once they are complete."""
        started = perf_counter()
        meter, is_push = self.sync.meter, kind is Kind.PUSH
        layout = self._buckets.layouts[0] if is_push and meter.measures(clock) else None
        lost: ErrorSums | None = None
        with self._failing_for_good(clock):
            message = Message(kind, clock, staleness=self.staleness, count=self._gradients.buffer.numel())
            if is_push:
                self._push(message, None if layout is None else layout.norms)
                lost = None if layout is None else meter.measured(layout, clock)
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
        """Send the gradient, preceded by the used-parameter flags if this rank has unused parameters."""
        codec, used, reached = self.exchange.plan.encoding, UsedParameters(self._gradients), None
        if used.unused:
            message = replace(message, kind=Kind.PART)
            reached = used.flags(range(len(self._gradients.parameters)))
        residual = self._buckets.feedback(self._gradients, 0)
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
                f"rank {self.exchange.link.rank}: expected parameters to be unfrozen right after drain(), "
                f"got a parameter unfrozen after step {self.steps_done}; unfreeze between drain() and the "
                "next step, on all ranks"
            )
        return StepRecord()

    def _hear_answer(self, clock: int) -> Message:
        while (answer := self._talk.hear()).kind is Kind.HELD:
            pass  # the server is alive, so the timeout starts again
        if answer.kind is Kind.GAVE_UP:
            whom = "of its own error" if answer.rank == 0 else f"rank {answer.rank} failed"
            raise ExchangeError(f"the server stopped because {whom}; see the error of rank {answer.rank}")
        if answer.kind not in (Kind.WEIGHTS, Kind.SAME) or answer.clock != clock:
            raise FrameError(
                f"expected an answer to step {clock}, got {answer.kind.name} for step {answer.clock}; "
                "create a StaleServer on rank 0 of the link"
            )
        return answer

    @contextmanager
    def _failing_for_good(self, clock: int) -> Iterator[None]:
        if self.exchange.failure is not None:
            raise ExchangeError(f"this worker has failed ({self.exchange.failure}); create a new worker")
        try:
            yield
        except BaseException as error:
            reason = str(error) or type(error).__name__
            failure = f"rank {self.exchange.link.rank}, step {clock}: {reason}"
            self.exchange.close(failure)
            if isinstance(error, (ExchangeError, FrameError, LinkError, PayloadError)):
                raise ExchangeError(failure) from error
            raise
