"""PS-Sync: the synchronous parameter server, or worker-aggregator, the baseline of ring and pipeline.

Rank 0 of the link is the server, ranks 1..p are the workers. Gradients go up through the plan's codec,
weights come down through a codec of their own: INCEPTIONN's WA (no codec), WA+C (a gradient codec only), and
A2DTWP's transfers (a weight codec). Each travels as one bucket, whatever the plan says.
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
from gradwire.sync.deltas import over, weight_codec_of
from gradwire.sync.flat import FlatGradients, FlatWeights
from gradwire.sync.flat_buckets import WHOLE
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, Method, WorkerMethod
from gradwire.sync.observe import NULL_BUCKET
from gradwire.sync.replicas import count_weights
from gradwire.sync.trained import check_optimizer
from gradwire.sync.used_parameters import Reach, backward

REACHED = "reached"
"""The ledger's name of the numbers that say which parameters the workers' backward passes reached."""


class Server(Method):
    """Rank 0: sum the workers' gradients, update the master weights with their mean, send the weights down.

    The server has no batch and does not count in the average: ``w[t] = w[t-1] - lr * sum(g) / p`` over p
    workers. A lossy weight codec leaves the master weights exact; all workers adopt the same decoded weights.

    Parameters
    ----------
    model
        The master weights: dense float32 parameters on one device. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure. It and its state exist only here.
    plan
        What ``Plan.of`` reads, with the algorithm ``star``. Raises ``SpecError`` otherwise, for any other
        rank than 0, and without workers.
    weight_codec
        Encodes the weights: a codec or its spec, the same on all ranks; exact by default. ``delta:fp32``
        sends their changes, exactly; ``delta:bf16`` those of the weights rounded to bfloat16. Either keeps a
        copy of the weights on every rank.
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
        """Serve one step of all workers; the record has no loss. Raises ``ExchangeError``."""
        start = self._ready()
        started = perf_counter()
        self._gradients.zero()
        total, self.exchange.link.step = self._gradients.staged(), self.steps_done + 1
        up = self.exchange.reduce(total.floats())
        used = Reach(self._gradients)
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
        """Serve ``steps`` steps; return their sum. Raises ``SpecError`` and ``ExchangeError``."""
        check_steps(steps)
        return sum((self.step() for _ in range(steps)), StepRecord())

    def _lay_out(self) -> None:
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._weights = FlatWeights(self.trained.parameters)


class Worker(WorkerMethod):
    """Ranks 1..p: send the gradient up, adopt the weights that come down.

    See ``Server`` for the arguments. Raises ``SpecError`` for rank 0.
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
        used = Reach(self._gradients)
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
    """Return the codec of the weights, the exact one by default.

    Raises ``SpecError``, also where the plan's segments are too long for it.
    """
    return replace(plan, codec=weight_codec_of(codec, "weight_codec", ledger) or Identity()).codec


def check_steps(steps: object) -> None:
    """Raise ``SpecError`` unless ``steps`` is a number of steps."""
    if not is_whole(steps, 0, sys.maxsize):
        raise SpecError(f"serve takes a whole number of steps from 0 up, but got {shown(steps)}")


def star_of(plan: PlanLike) -> Plan:
    """Return the plan of a parameter server; ``plan`` is what ``Plan.of`` reads."""
    who = "a parameter server"
    return Plan.of(plan, algorithm="star").for_whole_gradients(who).for_one_codec(who).on_host(who)


def check_star(exchange: Exchange, method: str, *, serves: bool) -> None:
    """Raise ``SpecError`` unless the exchange is a star with a worker, and rank 0 alone serves."""
    if exchange.plan.algorithm != "star" or exchange.link.world < 2:
        raise SpecError(
            "a parameter server expects the algorithm 'star' and at least 2 ranks, but got "
            f"{exchange.plan.algorithm!r} and {exchange.link.world} ranks; use Plan(algorithm='star')"
        )
    rank = exchange.link.rank
    if serves and rank != 0:
        other = method.replace("Server", "Worker")
        raise SpecError(f"the server is rank 0 of its link, but this is rank {rank}; make a {other}")
    if rank == 0 and not serves:
        other = method.replace("Worker", "Server")
        raise SpecError(f"rank 0 of the link is the server, but a {method} was made there; make a {other}")


# Weights that the checkpoint of a server or a worker keeps.


def check_weights(weights: Mapping[str, torch.Tensor] | None, model: nn.Module) -> None:
    """Raise ``StateError`` unless a state keeps weights, and they are of such a model."""
    wanted, found = (
        {name: f"{tuple(each.shape)} of {each.dtype}" for name, each in values.items()}
        for values in (model.state_dict(), weights or {})
    )
    different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if different:
        name = different[0]
        raise StateError(
            f"the state is of another model: {shown(name)} is {found.get(name, 'missing')} there and "
            f"{wanted.get(name, 'missing')} here"
        )


@contextmanager
def restoring(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Give an optimizer its state back if loading another one fails, and raise ``StateError`` then.

    torch may raise anything for a damaged state, and may have adopted parts of it by then.
    """
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    try:
        yield
    except Exception as error:
        optimizer.__dict__.update(before)
        if isinstance(error, GradwireError):
            raise
        reason = shown(str(error) or type(error).__name__)
        raise StateError(f"the optimizer refuses the state: {reason}; make the same optimizer") from error
