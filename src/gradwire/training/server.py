"""PS-Sync: the synchronous parameter server, or worker-aggregator, that ring and pipeline are compared with.

Rank 0 of the link is the server, ranks 1..p are the workers. Gradients go up through the plan's codec,
weights come down through a codec of their own: INCEPTIONN's WA (no codec), WA+C (a gradient codec only), and
with a weight codec what A2DTWP sends to its devices. Each travels as one bucket, whatever the plan says.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from gradwire.codecs import Codec, Identity
from gradwire.errors import SpecError
from gradwire.exchange import Exchange
from gradwire.training.broadcast import broadcast_weights, count_weights
from gradwire.training.communication import WHOLE
from gradwire.training.flat import FlatGradients, FlatWeights, trainable
from gradwire.training.ledger import Ledger
from gradwire.training.method import WorkerMethod, backward
from gradwire.training.record import StepRecord
from gradwire.training.residual import GRADIENT, Residuals


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
        What the weights are sent through; exact by default. The workers name the same.
    ledger
        Counts bytes and seconds of gradients and weights by step, if there is one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        weight_codec: Codec | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_star(exchange)
        if exchange.link.rank != 0:
            raise SpecError(
                f"the server is rank 0 of its link, but this is rank {exchange.link.rank}; make a Worker"
            )
        self.model = model
        self.exchange = exchange
        self.ledger = ledger
        self.weight_codec = weight_codec or Identity()
        self.steps_done = 0
        self._optimizer = optimizer
        self._gradients = FlatGradients(model.parameters())
        self._weights = FlatWeights(trainable(model.parameters()))
        self._synchronised = False

    def synchronise(self) -> StepRecord:
        """Send the master weights, exactly, to all workers, who call theirs. Raises ``ExchangeError``."""
        started = perf_counter()
        accounting = broadcast_weights(self.model, self.exchange)
        count_weights(self.ledger, accounting)
        self._synchronised = True
        return StepRecord.of_wait(accounting.total_s, accounting).within(perf_counter() - started, steps=0)

    def step(self) -> StepRecord:
        """Serve one step of all workers; the record has no loss. Raises ``ExchangeError``."""
        start = StepRecord() if self._synchronised else self.synchronise()
        started = perf_counter()
        self._gradients.zero()
        up = self.exchange.reduce(self._gradients.buffer)
        self._gradients.buffer.div_(self.exchange.link.world - 1)
        self._optimizer.step()
        down = self.exchange.broadcast(self._weights.gather(), codec=self.weight_codec)
        self.steps_done += 1
        if self.ledger is not None:
            self.ledger.exchanged(WHOLE, up, up.total_s, gradient_nbytes=self._gradients.buffer.nbytes)
            count_weights(self.ledger, down)
            self.ledger.end_step()
        waits = StepRecord.of_wait(up.total_s, up) + StepRecord.of_wait(down.total_s, down)
        return start + waits.within(perf_counter() - started)

    def serve(self, steps: int) -> StepRecord:
        """Serve so many steps; return their sum. Raises ``ExchangeError``."""
        total = StepRecord()
        for _ in range(steps):
            total += self.step()
        return total


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
        weight_codec: Codec | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_star(exchange)
        if exchange.link.rank == 0:
            raise SpecError("rank 0 of the link is the server, but a Worker was made there; make a Server")
        super().__init__(model, exchange, ledger)
        self.weight_codec = weight_codec or Identity()
        self._gradients = FlatGradients(model.parameters())
        self._weights = FlatWeights(trainable(model.parameters()))
        self.residuals = Residuals(exchange.plan, exchange.link.rank, exchange.link.world)
        self._residual = self.residuals.of(GRADIENT, self._gradients.buffer.numel())

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        loss = backward(compute_loss, self._gradients)
        step, buffer = self.steps_done + 1, self._gradients.buffer
        measure = self.meter.measure(step, self.meter.all)
        up = self.exchange.reduce(buffer, residual=self._residual, norms=measure.norms)
        self.meter.finish(step, measure, self.exchange)
        down = self.exchange.broadcast(self._weights.buffer, codec=self.weight_codec)
        self._weights.scatter()
        self.meter.count(WHOLE, up, up.total_s, buffer.nbytes, measure)
        count_weights(self.ledger, down)
        waits = StepRecord.of_wait(up.total_s, up) + StepRecord.of_wait(down.total_s, down)
        return waits.within(perf_counter() - started, loss=loss)


def check_star(exchange: Exchange) -> None:
    """Raise ``SpecError`` unless the exchange is a star with a worker."""
    if exchange.plan.algorithm != "star" or exchange.link.world < 2:
        raise SpecError(
            "a parameter server wants the algorithm 'star' and at least 2 ranks, but the exchange has "
            f"{exchange.plan.algorithm!r} and {exchange.link.world} ranks; use Plan(algorithm='star')"
        )
