"""PS-Sync: the synchronous parameter server, or worker-aggregator, the baseline of ring and pipeline.

Rank 0 of the link is the server, ranks 1..p are the workers. Workers send gradients with the plan's codec.
The server sends weights with a separate codec. These codecs cover INCEPTIONN's WA (no codec), WA+C (a
gradient codec only), and A2DTWP's transfers (a weight codec). Gradients and weights have one bucket each,
whatever the plan says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch
from torch import nn

from gradwire.codecs import Codec, Identity
from gradwire.codecs.spec import is_whole
from gradwire.costs import ExchangeCost
from gradwire.errors import GradwireError, SpecError, StateError, shown
from gradwire.exchange import Exchange
from gradwire.exchange.request import Half
from gradwire.plan import Plan, PlanLike
from gradwire.sync.bucket.observe import NULL_BUCKET
from gradwire.sync.flat.backward import backward
from gradwire.sync.flat.buckets import WHOLE, UsedParameters
from gradwire.sync.flat.gradients import FlatGradients, FlatWeights
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, Method, WorkerMethod
from gradwire.sync.replicas.broadcast import count_weights
from gradwire.sync.replicas.deltas import over, weight_codec_of
from gradwire.sync.trained import check_optimizer

REACHED = "reached"
"""The ledger's name for the exchange of flags of used parameters."""


class Server(Method):
    """The server (rank 0), which updates the master weights with the mean gradient and sends the weights.

    The server has no batch and isn't part of the average: ``w[t] = w[t-1] - lr * sum(g) / p`` over p workers.
    With a lossy weight codec, the master weights stay exact, and all workers adopt the same decoded weights.

    Parameters
    ----------
    model
        The master weights: dense float32 parameters on one device. Raises ``TensorError`` otherwise.
    optimizer
        A ``torch.optim`` optimizer whose ``step`` needs no closure. Only the server has an optimizer and
        optimizer state.
    plan
        A plan, or an argument of ``Plan.of``, with the algorithm ``star``. Raises ``SpecError`` for any other
        algorithm, on any rank other than 0, and without workers.
    weight_codec
        The codec of the weights, or its spec, the same on all ranks; exact by default. ``delta:fp32`` sends
        exact deltas; ``delta:bf16`` sends deltas of the weights rounded to bfloat16. With either spec, every
        rank keeps a copy of the weights.
    group, timeout_s, ledger
        See ``Method``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: PlanLike = None,
        weight_codec: Codec | str | None = None,
        *,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        check_optimizer(optimizer, "Server")
        self._optimizer = optimizer
        chosen = star_of(plan)
        self.weight_codec = weights_through(weight_codec, chosen, ledger)
        super().__init__(model, optimizer, chosen, group, timeout_s, ledger)

    def _check_ranks(self) -> None:
        check_star(self.exchange, type(self).__name__, serves=True)

    def step(self) -> StepRecord:
        """Serve one step of all workers, and return its record (no loss). Raises ``ExchangeError``."""
        start = self._ready()
        started = perf_counter()
        self._gradients.zero()
        total, self.exchange.link.step = self._gradients.staged(), self.steps_done + 1
        up = self.exchange.reduce(total.floats())
        used = UsedParameters(self._gradients)
        told = used.send_up(self.exchange)
        total.floats().div_(self.exchange.link.world - 1)
        total.store()
        self._gradients.attach(used.absent)
        self.trained.shield()
        self._optimizer.step()
        weights = self._weights.gather()
        down = self.exchange.broadcast(weights, over(self.weight_codec, weights))
        self.sync.context.count(WHOLE, up, up.total_s, self._gradients.buffer.nbytes)
        self.sync.context.count(REACHED, told, told.total_s)
        count_weights(self.ledger, down)
        self.sync.finish()
        return start + _waits(up, told, down).within(perf_counter() - started)

    def serve(self, steps: int) -> StepRecord:
        """Serve ``steps`` steps and return their total. Raises ``SpecError`` and ``ExchangeError``."""
        check_steps(steps)
        return sum((self.step() for _ in range(steps)), StepRecord())

    def _lay_out(self) -> None:
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._weights = FlatWeights(self.trained.parameters)


class Worker(WorkerMethod):
    """A worker (ranks 1..p) that sends its gradient to the server and adopts the updated weights.

    See ``Server`` for the arguments. Raises ``SpecError`` on rank 0.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: PlanLike = None,
        weight_codec: Codec | str | None = None,
        *,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        chosen = star_of(plan)
        self.weight_codec = weights_through(weight_codec, chosen, ledger)
        super().__init__(model, None, chosen, group, timeout_s, ledger)

    def _check_ranks(self) -> None:
        check_star(self.exchange, type(self).__name__, serves=False)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        loss = backward(compute_loss, self._gradients)
        used = UsedParameters(self._gradients)
        up = self._buckets.run(self._gradients, NULL_BUCKET, Half.REDUCE)
        told = used.send_up(self.exchange)
        weights = self._weights.buffer
        down = self.exchange.broadcast(weights, over(self.weight_codec, weights))
        self._weights.scatter()
        self.sync.context.count(REACHED, told, told.total_s)
        count_weights(self.ledger, down)
        return _waits(up, told, down).within(perf_counter() - started, loss=loss)

    def _lay_out(self) -> None:
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._weights = FlatWeights(self.trained.parameters)
        self._buckets = self._buckets_of(self._gradients)


def _waits(*exchanges: ExchangeCost) -> StepRecord:
    return sum((StepRecord.of_wait(each.total_s, each) for each in exchanges), StepRecord())


def weights_through(codec: Codec | str | None, plan: Plan, ledger: Ledger | None) -> Codec:
    """Return the codec of the weights, exact by default, if it allows the plan. Raises ``SpecError``."""
    return replace(plan, codec=weight_codec_of(codec, "weight_codec", ledger) or Identity()).codec


def check_steps(steps: object) -> None:
    """Raise ``SpecError`` unless ``steps`` is a whole number from 0 up."""
    if not is_whole(steps, 0, sys.maxsize):
        raise SpecError(
            f"serve: expected a whole number of at least 0 steps, got {shown(steps)}; pass the number of "
            "steps that each worker runs"
        )


def star_of(plan: PlanLike) -> Plan:
    """Return the plan of a parameter server, made from a plan or an argument of ``Plan.of``."""
    who = "a parameter server"
    return Plan.of(plan, algorithm="star").for_whole_gradients(who).for_one_codec(who).on_host(who)


def check_star(exchange: Exchange, method: str, *, serves: bool) -> None:
    """Raise ``SpecError`` unless the exchange is a star of at least two ranks. Only rank 0 may serve."""
    if exchange.plan.algorithm != "star" or exchange.link.world < 2:
        raise SpecError(
            "a parameter server: expected the algorithm 'star' and at least 2 ranks, got "
            f"{exchange.plan.algorithm!r} and {exchange.link.world} ranks; use Plan(algorithm='star')"
        )
    rank = exchange.link.rank
    if serves and rank != 0:
        other = method.replace("Server", "Worker")
        raise SpecError(
            f"expected rank 0 of the link as the server, got rank {rank}; create a {other} on this rank"
        )
    if rank == 0 and not serves:
        other = method.replace("Worker", "Server")
        raise SpecError(
            f"expected the server on rank 0 of the link, got a {method}; create a {other} on rank 0"
        )


# The weights and optimizer state in a checkpoint of a server or a worker.


def check_weights(weights: Mapping[str, torch.Tensor] | None, model: nn.Module) -> None:
    """Raise ``StateError`` unless a state has weights, with the names, shapes, and dtypes of the model."""
    wanted, found = (
        {name: f"{tuple(each.shape)} of {each.dtype}" for name, each in values.items()}
        for values in (model.state_dict(), weights or {})
    )
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different:
        name = different[0]
        raise StateError(
            f"expected a state with {shown(name)} {wanted.get(name, 'missing')}, got "
            f"{found.get(name, 'missing')}; load the state of the same model"
        )


@contextmanager
def restoring(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore the old state if torch fails to load a new state, in any way, and raise ``StateError``."""
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    try:
        yield
    except Exception as error:
        optimizer.__dict__.update(before)
        if isinstance(error, GradwireError):
            raise
        reason = shown(str(error) or type(error).__name__)
        raise StateError(
            f"the optimizer cannot load the state: {reason}; create the optimizer of the saved run"
        ) from error
