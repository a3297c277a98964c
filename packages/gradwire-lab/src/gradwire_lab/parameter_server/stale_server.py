"""A parameter server with bounded staleness: workers push and pull at their own pace, within limits.

The method is from Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server" (NIPS 2013). ``session.Clocks`` implements the condition; ``conversation`` defines the messages. Rank
0 of the link is the server, ranks 1..p are the workers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock

import torch
from torch import nn

from gradwire.codecs import Codec, Identity
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, FrameError, LinkError, PayloadError
from gradwire.plan import PlanLike
from gradwire.sync.checkpoint import RankState
from gradwire.sync.flat.buckets import WHOLE
from gradwire.sync.flat.gradients import FlatGradients, FlatWeights
from gradwire.sync.flat.update import in_force
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, Method
from gradwire.sync.replicas.deltas import another
from gradwire.sync.trained import TrainedParameters, check_optimizer
from gradwire_lab.parameter_server.conversation import Conversation
from gradwire_lab.parameter_server.ps_sync import (
    check_star,
    check_steps,
    check_weights,
    restoring,
    star_of,
    weights_through,
)
from gradwire_lab.parameter_server.session import (
    Clocks,
    Codecs,
    Event,
    Now,
    Session,
    Snapshot,
    check_staleness,
)

# Updates of the server's weights: one per gradient, or one per step of all workers.

Schedule = Callable[[int], None]
"""A function that sets a step's learning rates, called with the step (from 0) before an update."""


class Updates(ABC):
    """The update rule of the server's weights, and each worker's gradient and unused parameters.

    Each gradient is applied completely or not at all, after the clocks have counted it.
    """

    def __init__(
        self,
        trained: TrainedParameters,
        optimizer: torch.optim.Optimizer,
        clocks: Clocks,
        workers: Sequence[int],
    ) -> None:
        self.gradients = {rank: _flat(trained) for rank in workers}
        self.absent = dict.fromkeys(workers, frozenset[int]())
        self._trained, self._optimizer, self._clocks = trained, optimizer, clocks

    @abstractmethod
    def came(self, rank: int, schedule: Schedule) -> bool:
        """Process the complete gradient of ``rank``, and return whether the weights have changed."""


class AtOnce(Updates):
    """An update rule with one update per gradient, at 1/p of the learning rate for p workers.

    Dividing the rate, not the gradient, is right with weight decay or Adam, too. Momentum decays per update.
    """

    def came(self, rank: int, schedule: Schedule) -> bool:
        """Update the weights with the gradient of ``rank``."""
        schedule(self._clocks.of(rank) - 1)
        self.gradients[rank].put()
        self.gradients[rank].attach(self.absent[rank])
        self._trained.shield()
        shares = [{"lr": group["lr"] / len(self.gradients)} for group in self._optimizer.param_groups]
        with in_force(shares, self._optimizer):
            self._optimizer.step()
        return True


class OnceARound(Updates):
    """PS-Sync's update rule: one update per step, by the mean gradient, summed in the order of ranks."""

    def __init__(
        self,
        trained: TrainedParameters,
        optimizer: torch.optim.Optimizer,
        clocks: Clocks,
        workers: Sequence[int],
    ) -> None:
        super().__init__(trained, optimizer, clocks, workers)
        self._sum = _flat(trained)

    def came(self, rank: int, schedule: Schedule) -> bool:
        """Update the weights if this is the last gradient of its step."""
        if not self._clocks.level:
            return False
        schedule(self._clocks.of(rank) - 1)
        self._sum.zero()
        total = self._sum.staged()
        for gradients in self.gradients.values():
            # Bit-identical to the sum of an exchange, even if this thread flushes subnormals.
            Identity().decode_add(gradients.buffer.view(torch.uint8), total.floats())
        total.floats().div_(len(self.gradients))
        total.store()
        self._sum.attach(frozenset.intersection(*self.absent.values()))
        self._trained.shield()
        self._optimizer.step()
        return True


def _flat(trained: TrainedParameters) -> FlatGradients:
    return FlatGradients(trained.parameters, with_frozen=True)


class _LostError(Exception):
    """A worker's failure, where ``reason`` is the error of its session."""

    def __init__(self, rank: int, clock: int, reason: BaseException) -> None:
        super().__init__(f"serving rank {rank} after step {clock}: {str(reason) or type(reason).__name__}")
        self.rank, self.reason = rank, reason


class StaleServer(Method):
    """The server (rank 0), which applies each worker's gradient on arrival and delays workers too far ahead.

    A worker that has done c steps receives weights once the slowest worker has done c - S steps. With S >= 1,
    each gradient updates the current weights separately, at 1/p of the learning rate: ``w <- w - lr / p *
    g``. With S = 0, there is one update per step with the mean gradient: PS-Sync (``Server``), bit for bit. A
    gradient is applied only after all of it is received.

    The state includes the weights and the optimizer's state between two calls of ``serve``. Each worker saves
    its own state after it has drained. A state may be loaded with a different staleness or different options
    of the optimizer.

    Parameters
    ----------
    model, optimizer, plan, weight_codec, group, timeout_s
        See ``Server``.
    staleness
        S, the number of steps that a worker may be ahead of the slowest worker, from 0 up; the same on all
        ranks. Raises ``SpecError`` otherwise.
    ledger
        The ledger for bytes and seconds. The ledger counts each ``serve`` as one step, because gradients and
        weights of different steps are in flight at the same time.

    Attributes
    ----------
    steps_done
        The number of steps that the server has served for every worker.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: PlanLike,
        staleness: int,
        weight_codec: Codec | str | None = None,
        *,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        check_optimizer(optimizer, "StaleServer")
        check_staleness(staleness)
        self.staleness, self._optimizer = staleness, optimizer
        chosen = star_of(plan)
        self.weight_codec = weights_through(weight_codec, chosen, ledger)
        self._turn = Lock()
        self._snapshot: Snapshot | None = None
        self._updates_done = 0
        super().__init__(model, optimizer, chosen, group, timeout_s, ledger)

    def _check_ranks(self) -> None:
        check_star(self.exchange, "StaleServer", serves=True)
        link = self.exchange.link
        self._workers = range(1, link.world)
        self._clocks = Clocks(self._workers, self.staleness)
        self._talks = [Conversation(link, rank, self.plan, self._turn) for rank in self._workers]

    def serve(self, steps: int, schedule: Schedule = lambda _step: None) -> StepRecord:
        """Serve ``steps`` steps of every worker and the ``drain`` after them, and return their record.

        ``schedule`` is called with a step's number, from 0, before a gradient of that step is applied. With S
        >= 1, these numbers may decrease by up to S + 1.

        Raises ``ExchangeError``, with the worker's rank, if a worker is gone, too slow, or sends invalid
        data. The server then notifies the other workers and closes the link. No gradient is partly applied.
        """
        if self.exchange.failure is not None:
            raise ExchangeError(f"this server has failed ({self.exchange.failure}); create a new server")
        check_steps(steps)
        if steps < 1:
            return StepRecord()
        start = self._ready()
        started = time.perf_counter()
        try:
            wait_s = self._serve(self.steps_done + steps, schedule)
        except _LostError as lost:
            self._stop(lost.rank, str(lost))
            if isinstance(lost.reason, (ExchangeError, FrameError, LinkError, PayloadError)):
                raise ExchangeError(str(lost)) from lost.reason
            raise lost.reason from None
        except BaseException as error:
            self._stop(self.exchange.link.rank, str(error) or type(error).__name__)
            raise
        cost = sum((session.settle() for session in self._sessions), ExchangeCost())
        nbytes = steps * sum(session.gradient.nbytes for session in self._sessions)
        self.sync.context.count(WHOLE, cost, wait_s, nbytes)
        self.sync.context.steps_done += steps
        self.sync.end_step()
        return start + StepRecord.of_wait(wait_s, cost).within(time.perf_counter() - started, steps=steps)

    def _state(self, drained: bool) -> RankState:
        model, optimizer = self.model.state_dict(), self._optimizer.state_dict()
        return replace(super()._state(drained), model=model, optimizer=optimizer)

    def _adopt(self, saved: RankState) -> None:
        check_weights(saved.model, self.model)
        with restoring(self._optimizer):
            self._optimizer.load_state_dict(dict(saved.optimizer or {}))
            super()._adopt(saved)
        self.model.load_state_dict(saved.model or {})
        self._clocks.set_all(saved.steps_done)
        self._snapshot = None

    def _serve(self, goal: int, schedule: Schedule) -> float:
        """Handle the sessions' reports until all sessions have ended, and return the idle seconds."""
        events: SimpleQueue[Event] = SimpleQueue()
        for session in self._sessions:
            session.start(goal, events)
        wait_s, at_work = 0.0, len(self._sessions)
        while at_work:
            started = time.perf_counter()
            event = events.get()  # each session reports within the link's timeout
            wait_s += time.perf_counter() - started
            if isinstance(event.what, BaseException):
                raise _LostError(event.session.rank, self._clocks.of(event.session.rank), event.what)
            if event.what is Now.ENDED:
                at_work -= 1
            else:
                self._handle(event.session, event.what, schedule)
        return wait_s

    def _handle(self, session: Session, asks: Now, schedule: Schedule) -> None:
        session.asks = asks
        if asks is Now.PUSHED:
            self._clocks.tick(session.rank)
            self._updates.absent[session.rank] = session.absent
            if self._updates.came(session.rank, schedule):
                self._updates_done += 1
                self._snapshot = None
        all_drain = all(each.asks is Now.DRAINS for each in self._sessions)
        for each in self._sessions:
            if all_drain or (each.asks is Now.PUSHED and self._clocks.may_go_on(each.rank)):
                each.answer(self._current())

    def _current(self) -> Snapshot:
        """Return a copy of the current weights, made once for all workers."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self._updates_done, self._weights.gather().clone())
        return self._snapshot

    def _stop(self, culprit: int, reason: str) -> None:
        """Notify the workers that send a request within the timeout, and close the link."""
        for session in self._sessions:
            session.give_up(culprit)
        until = time.monotonic() + self.exchange.link.timeout_s
        for session in self._sessions:
            session.join(until)
        with self._turn:
            self.exchange.close(reason)

    def _lay_out(self) -> None:
        """Create gradients, weights, and sessions for the currently trained parameters."""
        kind = AtOnce if self.staleness else OnceARound
        self._updates: Updates = kind(self.trained, self._optimizer, self._clocks, self._workers)
        self._weights = FlatWeights(self.trained.parameters)
        self._snapshot = None
        self._sessions = [self._make_session(talk) for talk in self._talks]

    def _make_session(self, talk: Conversation) -> Session:
        codecs = Codecs(self.exchange.plan.encoding, another(self.weight_codec, self.ledger))
        gradients = self._updates.gradients[talk.peer]
        return Session(talk, gradients.buffer, len(gradients.parameters), self._clocks, codecs)
