"""PS-Sync: the synchronous parameter server, or worker-aggregator, that ring and pipeline are compared with.

Rank 0 of the link is the server, ranks 1..p are the workers. Gradients go up through the plan's codec,
weights come down through a codec of their own: INCEPTIONN's WA (no codec), WA+C (a gradient codec only), and
with a weight codec what A2DTWP sends to its devices. Each travels as one bucket, whatever the plan says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from gradwire.codecs import Codec, Identity, codec_of
from gradwire.codecs.spec import is_whole
from gradwire.errors import SpecError, shown
from gradwire.exchange import Accounting, Exchange
from gradwire.training.communication.buckets import WHOLE
from gradwire.training.gradients.flat import FlatGradients, FlatWeights
from gradwire.training.gradients.reached import Reach, set_aside
from gradwire.training.gradients.residual import Residuals
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.methods.method import WorkerMethod, backward
from gradwire.training.methods.trained import Trained, check_exchange, check_extras, check_optimizer, relaid
from gradwire.training.methods.welcome import welcome
from gradwire.training.replicas.broadcast import begin_equal, count_weights

REACHED = "reached"
"""What a ledger calls the numbers by which workers tell which parameters their backward passes reached."""


class Server:
    """Rank 0: sum the workers' gradients, update the master weights with their mean, send the weights down.

    The server has no batch of its own and does not count in the average: ``w[t] = w[t-1] - lr * sum(g) / p``
    over p workers. A lossy weight codec does not touch the master weights; all workers adopt the same decoded
    weights.

    Parameters
    ----------
    model
        The master weights: dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure. It and its state exist only here.
    exchange
        Rank 0 of a star with at least one worker. Raises ``SpecError`` otherwise.
    weight_codec
        What the weights are sent through, a codec or its spec; exact by default. The workers name the same.
    ledger
        Counts bytes and seconds of gradients and weights by step, if there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        weight_codec: Codec | str | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_exchange(exchange, "Server")
        check_optimizer(optimizer, "Server")
        check_extras("Server", ledger, strict=False)
        check_star(exchange)
        if exchange.link.rank != 0:
            raise SpecError(
                f"the server is rank 0 of its link, but this is rank {exchange.link.rank}; make a Worker"
            )
        self.trained = Trained(model, optimizer, "Server")
        self.model = model
        self.exchange = exchange
        self.ledger = ledger
        self.weight_codec = codec_of(weight_codec, "weight_codec") or Identity()
        self.steps_done = 0
        self._optimizer = optimizer
        self._lay_out()
        self._synchronised = False

    def synchronise(self) -> StepRecord:
        """Send the master weights and the buffers, exactly, to all workers, who call theirs.

        Raises ``ExchangeError``.
        """
        started = perf_counter()
        accounting = begin_equal(self.model, self.exchange, self.ledger)
        self._synchronised = True
        return StepRecord.of_wait(accounting.total_s, accounting).within(perf_counter() - started, steps=0)

    def step(self) -> StepRecord:
        """Serve one step of all workers; the record has no loss. Raises ``ExchangeError``."""
        start = StepRecord() if self._synchronised else self.synchronise()
        if self.trained.grown():
            cost = welcome(self.trained, self.exchange, self.ledger)
            self._lay_out()
            start += StepRecord.of_wait(cost.total_s, cost).within(cost.total_s, steps=0)
        started = perf_counter()
        self._gradients.zero()
        up = self.exchange.reduce(self._gradients.buffer)
        reach = Reach(self._gradients)
        told = reach.send_up(self.exchange)
        self._gradients.attach(reach.absent)
        self._gradients.buffer.div_(self.exchange.link.world - 1)
        self.trained.shield()
        self._optimizer.step()
        down = self.exchange.broadcast(self._weights.gather(), codec=self.weight_codec)
        self.steps_done += 1
        if self.ledger is not None:
            self.ledger.exchanged(WHOLE, up, up.total_s, gradient_nbytes=self._gradients.buffer.nbytes)
            self.ledger.exchanged(REACHED, told, told.total_s, gradient_nbytes=0)
            count_weights(self.ledger, down)
            self.ledger.end_step()
        return start + _waits(up, told, down).within(perf_counter() - started)

    def serve(self, steps: int) -> StepRecord:
        """Serve so many steps; return their sum. Raises ``SpecError`` and ``ExchangeError``."""
        check_steps(steps)
        total = StepRecord()
        for _ in range(steps):
            total += self.step()
        return total

    def _lay_out(self) -> None:
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._weights = FlatWeights(self.trained.parameters)


class Worker(WorkerMethod):
    """Ranks 1..p: send the gradient up, adopt the weights that come down.

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    exchange
        Rank 1 or above of a star. Raises ``SpecError`` otherwise.
    weight_codec
        What the server sends the weights through; exact by default.
    ledger
        Counts bytes and seconds of gradients and weights by step, if there is one.

    Attributes
    ----------
    residuals
        What this rank's encodings lost, where the plan keeps it; its state belongs into a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        weight_codec: Codec | str | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_exchange(exchange, "Worker")
        check_star(exchange)
        if exchange.link.rank == 0:
            raise SpecError("rank 0 of the link is the server, but a Worker was made there; make a Server")
        super().__init__(model, exchange, ledger)
        self.weight_codec = codec_of(weight_codec, "weight_codec") or Identity()
        self._gradients = FlatGradients(self.trained.parameters)
        self._weights = FlatWeights(self.trained.parameters)
        self.residuals = Residuals(exchange.plan, exchange.link.rank, exchange.link.world)
        self._residual = relaid(self.residuals, self._gradients)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        loss = backward(compute_loss, self._gradients)
        step, buffer, reach = self.steps_done + 1, self._gradients.buffer, Reach(self._gradients)
        measure = self.meter.measure(step, self.meter.all)
        with set_aside(reach.parts(self._residual)):
            up = self.exchange.reduce(buffer, residual=self._residual, norms=measure.norms)
        self.meter.finish(step, measure, self.exchange)
        told = reach.send_up(self.exchange)
        down = self.exchange.broadcast(self._weights.buffer, codec=self.weight_codec)
        self._weights.scatter()
        self.meter.count(WHOLE, up, up.total_s, buffer.nbytes, measure)
        if self.ledger is not None:
            self.ledger.exchanged(REACHED, told, told.total_s, gradient_nbytes=0)
        count_weights(self.ledger, down)
        return _waits(up, told, down).within(perf_counter() - started, loss=loss)

    def _lay_out(self) -> None:
        before = self._gradients
        self._gradients = FlatGradients(self.trained.parameters, with_frozen=True)
        self._weights = FlatWeights(self.trained.parameters)
        self._residual = relaid(self.residuals, self._gradients, before)


def _waits(*exchanges: Accounting) -> StepRecord:
    return sum((StepRecord.of_wait(each.total_s, each) for each in exchanges), StepRecord())


def check_steps(steps: object) -> None:
    """Raise ``SpecError`` unless so many steps can be served."""
    if not is_whole(steps, 0, sys.maxsize):
        raise SpecError(f"serve takes a whole number of steps from 0 up, but got {shown(steps)}")


def check_star(exchange: Exchange) -> None:
    """Raise ``SpecError`` unless the exchange is a star with a worker."""
    if exchange.plan.algorithm != "star" or exchange.link.world < 2:
        raise SpecError(
            "a parameter server wants the algorithm 'star' and at least 2 ranks, but the exchange has "
            f"{exchange.plan.algorithm!r} and {exchange.link.world} ranks; use Plan(algorithm='star')"
        )
