"""Pipe-SGD: pipelined SGD over an all-reduce (Li et al., NeurIPS 2018, algorithm 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.exchange import Accounting, Exchange
from gradwire.training.buckets import cut
from gradwire.training.communication import CommunicationThread, Handover, longest_s
from gradwire.training.flat import FlatGradients
from gradwire.training.method import WorkerMethod, backward
from gradwire.training.record import StepRecord
from gradwire.training.schedule import in_force, scheduled


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A gradient on the network, and the learning rate of the step that computed it."""

    gradients: FlatGradients
    handovers: list[Handover]
    scheduled: list[dict[str, Any]]


class PipeSGD(WorkerMethod):
    """Update with the averaged gradient of ``pipeline`` steps ago, while newer ones are on the network.

    Step t waits for the averaged gradient of step t-K, updates ``w[t] = w[t-1] - lr * mean(g[t-K])``,
    computes ``g[t]`` at ``w[t]`` and hands it to the communication thread. Gradients of steps <= 0 are zero:
    the first K steps make no update at all, so momentum and weight decay do not act there either. A step
    takes ``max(l_up + l_comp, l_comm)`` from K = 2 on (equation 4); a larger K only adds staleness. A
    gradient is applied with the learning rate (and momentum or betas) of the step that computed it, so that
    K = 1 is D-Sync under every schedule, bit for bit once drained.

    K buffers go round and are never copied: backward writes into one, the exchange averages it in place, and
    the optimizer reads it K steps later, just before backward takes it again. Between steps every ``.grad``
    is None, since its buffer is on the network. Where the plan cuts the gradient into buckets, they go out
    one after the other once backward has ended: the pipeline hides them already.

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise.
    optimizer
        Any ``torch.optim`` optimizer whose ``step`` needs no closure.
    exchange
        Belongs to the communication thread while gradients are under way; drain before using its link
        otherwise.
    pipeline
        K, the iteration dependency, from 1 up. Raises ``SpecError``.
    warmup_steps
        So many first steps are plain D-Sync; the pipeline starts, empty, after them. The paper warms up for 5
        epochs (AlexNet, ResNet) and not at all for small or convex models.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        pipeline: int = 2,
        warmup_steps: int = 0,
    ) -> None:
        super().__init__(model, exchange)
        if pipeline < 1 or warmup_steps < 0:
            raise SpecError(
                f"PipeSGD wants pipeline >= 1 and warmup_steps >= 0, but got pipeline={pipeline} and "
                f"warmup_steps={warmup_steps}; pipeline=2 hides the network, 1 is synchronous"
            )
        self.pipeline = pipeline
        self.warmup_steps = warmup_steps
        self._optimizer = optimizer
        self._free = deque(FlatGradients(model.parameters()) for _ in range(pipeline))
        self._buckets = cut(self._free[0].counts, exchange.plan.bucket_nbytes)
        self._under_way: deque[_UnderWay] = deque()
        patience_s = longest_s(exchange, max(bucket.count for bucket in self._buckets))
        self._communication = CommunicationThread(exchange, patience_s)

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        full = len(self._under_way) == self.pipeline
        waits = self._apply_oldest() if full else StepRecord()
        gradients = self._free[0]
        loss = backward(compute_loss, gradients)
        gradients.detach()  # a zero_grad of the caller must not reach what is on the network
        handovers = self._hand_over(gradients.buffer)
        self._under_way.append(_UnderWay(self._free.popleft(), handovers, scheduled(self._optimizer)))
        if self.steps_done < self.warmup_steps:
            waits += self._apply_oldest()
        return waits.within(perf_counter() - started, loss=loss)

    def drain(self) -> StepRecord:
        """Apply all outstanding gradients, oldest first, and leave the pipeline empty; return what that cost.

        The last averaged gradient stays in ``.grad``. The next step starts a new pipeline. Raises what the
        exchange raised, or ``LinkTimeoutError``.
        """
        started = perf_counter()
        waits = StepRecord()
        while self._under_way:
            waits += self._apply_oldest()
        return waits.within(perf_counter() - started, steps=0)

    def close(self) -> None:
        """Finish what is on the network, apply none of it, and join the thread; may be called twice.

        Raises ``LinkTimeoutError`` if the thread does not end.
        """
        if not self.closed:
            super().close()
            self._under_way.clear()
            self._communication.close()

    def abort(self) -> None:
        """Close without sending what is still queued; peers that wait for it run into their timeout."""
        for each in self._under_way:
            for handover in each.handovers:
                handover.result.cancel()
        self.close()

    def _hand_over(self, buffer: torch.Tensor) -> list[Handover]:
        """Give the buckets to the communication thread, which takes them in this order."""
        numbered = len(self._buckets) > 1
        return [
            self._communication.hand_over(self.steps_done + 1, bucket.view(buffer), number if numbered else 0)
            for number, bucket in enumerate(self._buckets, start=1)
        ]

    def _apply_oldest(self) -> StepRecord:
        """Wait for the oldest gradient under way and update the weights with it."""
        oldest = self._under_way[0]
        started = perf_counter()
        accounting = sum(map(self._communication.wait, oldest.handovers), Accounting())
        wait_s = perf_counter() - started
        self._under_way.popleft()
        self._free.append(oldest.gradients)
        oldest.gradients.attach()
        with in_force(oldest.scheduled, self._optimizer):
            self._optimizer.step()
        return StepRecord.of_wait(wait_s, accounting)
