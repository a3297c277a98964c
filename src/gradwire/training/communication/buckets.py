"""One flat gradient on its way: averaged whole, or bucket by bucket on a communication thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from gradwire.costs import ExchangeCost
from gradwire.devices import Staged
from gradwire.exchange import Exchange
from gradwire.exchange.division import AllReduces
from gradwire.training.communication.thread import CommunicationThread, Handover
from gradwire.training.gradients.buckets import cut
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.gradients.reached import Reach, set_aside
from gradwire.training.gradients.residual import parts
from gradwire.training.ledger.lost_meter import Measure
from gradwire.training.ledger.method_meter import MethodMeter

WHOLE = "gradient"
"""What a ledger calls the gradient of a step that goes out as one bucket."""


class Buckets:
    """The buckets of gradients that are laid out alike, and the thread that averages them in their order.

    The exchange, whose plan cuts the buckets, belongs to the thread while buckets are under way. ``residual``
    is what this rank's encodings lost, laid out as the gradients; None where the plan keeps none.
    """

    def __init__(
        self, exchange: Exchange, meter: MethodMeter, gradients: FlatGradients, residual: torch.Tensor | None
    ) -> None:
        self.cut = cut(gradients.counts, exchange.plan.bucket_nbytes)
        self.thread = CommunicationThread(exchange, meter)
        self._exchange, self._meter = exchange, meter
        self._residual, self._residuals = residual, parts(residual, self.cut)
        self._divided = [meter.divided(exchange, bucket.parameters) for bucket in self.cut]

    def hand_over(
        self, step: int, gradients: FlatGradients, number: int, reach: Reach | None = None
    ) -> Handover:
        """Let the thread average bucket ``number``, from 0 up; do not touch it before it is.

        ``reach`` is the step's. It comes with the last bucket: all gradients are there then, and the other
        buckets go before.
        """
        bucket, residual = self.cut[number], self._residuals[number]
        waiting: list[torch.Tensor] = []
        if self._residual is not None:
            unreached = gradients.unreached(bucket.parameters)
            waiting = [gradients.part(each, self._residual) for each in unreached]
        name = WHOLE if len(self.cut) == 1 else f"bucket {number + 1}"
        what = f"the {WHOLE} of step {step}"
        staged, measure = gradients.staged(bucket), self._meter.measure(step, bucket.parameters)
        way = self._exchange, self._divided[number], self._meter, step, staged, measure
        work = partial(average, *way, residual, waiting, reach)
        return self.thread.hand_over(
            Handover(name, what if name == WHOLE else f"{name} of {what}", work, staged.nbytes, measure)
        )

    def close(self) -> None:
        """Join the thread. Raises ``LinkTimeoutError`` if it does not end."""
        self.thread.close(max(bucket.count for bucket in self.cut))


def average(
    exchange: Exchange,
    divided: AllReduces,
    meter: MethodMeter,
    step: int,
    staged: Staged,
    measure: Measure,
    residual: torch.Tensor | None,
    waiting: Sequence[torch.Tensor],
    reach: Reach | None,
) -> ExchangeCost:
    """Average a flat gradient, or a bucket of it, in place over all ranks; return what that cost.

    ``divided`` is the exchange, or what divides its buckets by codecs. ``waiting`` are the parts of the
    residual that stay out of this step. Where ``reach`` comes with it, the ranks agree on what none of them
    has reached. Raises ``ExchangeError``.
    """
    exchange.link.step = step
    with staged.stream.current, set_aside(waiting):
        accounting = divided.all_reduce(staged.floats(), residual=residual, norms=measure.norms)
    accounting.device_nbytes += staged.crossing_nbytes
    staged.store()
    accounting += meter.finish(step, measure, exchange)
    return accounting if reach is None else accounting + reach.agree(exchange)
