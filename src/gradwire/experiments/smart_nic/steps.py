"""Training steps on the hosts of a testbed, in the three ways that the paper compares (its figures 2 and 3b).

The network and the exchanges are real, and the worker is simulated: a device that computes for as long as
the paper's formula says and leaves the host's cores alone. It is as fast, compared with the line, as the
paper's worker is compared with the NIC's line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType

import torch

from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.experiments.experiment import Cell
from gradwire.experiments.hosts.ranks import Ranks
from gradwire.experiments.smart_nic.options import BFP, BLOCKING, IDENTITY, LAYERWISE, OVERLAPPED
from gradwire.plan import Plan
from gradwire.timing.closed_form.smart_nic import (
    Mlp,
    Node,
    Trace,
    blocking_step,
    overlapped_step,
    smart_step,
)
from gradwire.timing.closed_form.smart_nic_prototype import (
    BACKWARD_SLOWDOWN,
    LINE_NBYTES_PER_S,
    calibrate,
)
from gradwire.timing.replay.environment import Environment
from gradwire.timing.replay.replay import replay
from gradwire.training.communication.thread import CommunicationThread, Handover
from gradwire.training.ledger.lost_meter import LostMeter
from gradwire.units import parse_rate

SEGMENT_NBYTES = 1 << 18
BUDGET_S = 10.0
"""For all steps of a cell: 3 at least, and 9 at most."""
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Replayed:
    """The hosts' NICs as a model's: an all-reduce takes what its replay says."""

    environment: Environment
    codec: str

    def all_reduce_s(self, width: int, nodes: int) -> float:
        """Return the seconds for a layer of ``width`` x ``width`` weights."""
        return replay("ring", nodes, width**2, SEGMENT_NBYTES, self.codec, self.environment).total_s


class Worker:
    """One rank's perceptron: the time that it computes, its gradients, and its weights."""

    def __init__(self, mlp: Mlp, node: Node, gradient: torch.Tensor) -> None:
        self.layers = range(len(mlp.widths))
        self._mlp, self._node, self._gradient = mlp, node, gradient
        self.buckets = [torch.zeros(width**2) for width in mlp.widths]
        self.weights = [torch.zeros(width**2) for width in mlp.widths]

    def forward(self) -> None:
        """Compute for ``T_F`` of all layers."""
        time.sleep(sum(self._node.forward_s(width, self._mlp.batch) for width in self._mlp.widths))

    def backward(self, layer: int, slowdown: float = 1.0) -> None:
        """Compute for ``T_B`` of a layer, and leave its gradients in its bucket."""
        until = time.monotonic()
        until += slowdown * self._node.backward_s(self._mlp.widths[layer], self._mlp.batch)
        self.buckets[layer].copy_(self._gradient[: self.buckets[layer].numel()])
        time.sleep(max(0.0, until - time.monotonic()))

    def update(self, layer: int) -> None:
        """Apply the averaged gradients of a layer."""
        self.weights[layer].add_(self.buckets[layer], alpha=-LEARNING_RATE)


class Communication:
    """A thread that exchanges the buckets of a worker while it computes."""

    def __init__(self, worker: Worker, exchange: Exchange) -> None:
        self._worker, self._exchange = worker, exchange
        self._thread = CommunicationThread(exchange, LostMeter(exchange.link.rank, exchange.plan, ()))

    def launch(self, layer: int, then: Callable[[int], None] | None = None) -> Handover:
        """Average a layer's gradients, and do something on the thread ``then``; return at once."""
        bucket = self._worker.buckets[layer]

        def work() -> ExchangeCost:
            cost = self._exchange.all_reduce(bucket)
            if then is not None:
                then(layer)
            return cost

        return self._thread.hand_over(
            Handover(None, f"the gradients of layer {layer + 1}", work, bucket.nbytes)
        )

    def wait(self, launched: Handover) -> None:
        """Wait for an exchange. Raises ``ExchangeError``."""
        self._thread.wait(launched)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()


def blocking(worker: Worker, exchange: Exchange) -> None:
    """Compute, exchange, and update one layer after the other."""
    worker.forward()
    for layer in reversed(worker.layers):
        worker.backward(layer)
        exchange.all_reduce(worker.buckets[layer])
        worker.update(layer)


def overlapped(worker: Worker, exchange: Exchange) -> None:
    """Compute with less than all cores, while the others exchange and update what is there."""
    with closing(Communication(worker, exchange)) as communication:
        worker.forward()
        launched = []
        for layer in reversed(worker.layers):
            worker.backward(layer, BACKWARD_SLOWDOWN)
            launched.append(communication.launch(layer, then=worker.update))
        for each in launched:
            communication.wait(each)


def layerwise(worker: Worker, exchange: Exchange) -> None:
    """Launch a layer's exchange, compute the layer below, wait, launch that one, and update (figure 3b)."""
    with closing(Communication(worker, exchange)) as communication:
        worker.forward()
        launched: Handover | None = None
        for layer in reversed(worker.layers):
            worker.backward(layer)
            if launched is not None:
                communication.wait(launched)
            above, launched = launched, communication.launch(layer)
            if above is not None:
                worker.update(layer + 1)
        if launched is not None:
            communication.wait(launched)
        worker.update(0)


METHODS = MappingProxyType({BLOCKING: blocking, OVERLAPPED: overlapped, LAYERWISE: layerwise})


def predicted(method: str, mlp: Mlp, node: Node, nic: Replayed, nodes: int) -> Trace:
    """Return what the model says of a method."""
    if method == BLOCKING:
        return blocking_step(mlp, node, nic, nodes)
    if method == OVERLAPPED:
        return overlapped_step(mlp, node, nic, nodes, slowdown=BACKWARD_SLOWDOWN)
    return smart_step(mlp, node, nic, nodes)


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Take steps for the cells of one network, as one of its ranks."""
    first = cells[0]
    environment = ranks.environment([IDENTITY, BFP], SEGMENT_NBYTES)
    line_nbytes_per_s = parse_rate(first["rate"]) or LINE_NBYTES_PER_S
    flops_per_s = calibrate().node.flops_per_s * line_nbytes_per_s / LINE_NBYTES_PER_S
    mlp = Mlp((first["width"],) * first["layers"], first["batch"])
    gradient = ranks.gradient(max(mlp.widths) ** 2)
    node = Node(flops_per_s, _update_s(ranks, Worker(mlp, Node(flops_per_s, 0.0), gradient)))
    for cell in cells:
        exchange = Exchange(ranks.link, Plan(parse(cell["codec"]), "ring", SEGMENT_NBYTES))
        worker, step = Worker(mlp, node, gradient), METHODS[cell["method"]]
        seconds = ranks.repeat_s(lambda: step(worker, exchange), budget_s=BUDGET_S, least=3, most=9)  # noqa: B023
        if environment is None:
            continue
        trace = predicted(cell["method"], mlp, node, Replayed(environment, cell["codec"]), ranks.world)
        ranks.report(
            cell,
            {
                "measured_s": statistics.median(seconds),
                "fastest_s": min(seconds),
                "slowest_s": max(seconds),
                "predicted_s": trace.total_s,
                "predicted_exposed_s": trace.exposed_s,
                "flops_per_s": node.flops_per_s,
                "update_s_per_parameter": node.update_s_per_parameter,
                "line_nbytes_per_s": environment.line.nbytes_per_s,
            },
        )


def _update_s(ranks: Ranks, worker: Worker) -> float:
    """Return the seconds for which an update of one parameter takes the slowest rank, all at once."""
    seconds = []
    for _ in range(5):
        ranks.gather(None)
        began = time.perf_counter()
        for layer in worker.layers:
            worker.update(layer)
        seconds.append(time.perf_counter() - began)
    parameters = sum(each.numel() for each in worker.weights)
    return float(max(ranks.gather(statistics.median(seconds)))) / parameters
