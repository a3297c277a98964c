"""Training steps on the hosts of a testbed, in the three schedules of the paper (its figures 2 and 3b).

Workers compute for real. All hosts of a testbed share the machine, so that its first core is that of all
workers, and its last core that of all smart NICs, whose role a software ring plays there. Without smart
NICs, the ring runs on the workers' core, beside backward or after it. Hosts that share a core wait for each
other. An exchange waits for the last worker to begin it, and for each ring to get the core. All of this
counts as exposed, because no host can tell it from communication.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.experiments.experiment import Cell
from gradwire.experiments.hosts.ranks import Ranks
from gradwire.experiments.smart_nic.mlp import Images, Perceptron, images
from gradwire.experiments.smart_nic.options import CALIBRATION, IDENTITY, LAYERWISE, NAIVE, OVERLAPPED
from gradwire.plan import Plan
from gradwire.training.communication.thread import CommunicationThread, Handover
from gradwire.training.ledger.lost_meter import LostMeter

SEGMENT_NBYTES = 1 << 18
WARM_STEPS = 3
"""The first steps of a training connect and fill caches; they train, but their times don't count."""
REPEATS = 15
"""Of what is timed for the calibration."""
ACTIVITIES = ("forward", "backward", "update", "exposed")


class Worker:
    """A perceptron whose activities on the training thread are timed and noted; layers count from 1."""

    def __init__(self, perceptron: Perceptron) -> None:
        self.perceptron = perceptron
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self.notes: list[str] = []

    def forward(self) -> None:
        """Compute all layers' outputs."""
        with self._timed("forward"):
            self.perceptron.forward()

    def backward(self, layer: int) -> None:
        """Compute a layer's gradients."""
        with self._timed("backward", f"B{layer + 1}"):
            self.perceptron.backward(layer)

    def update(self, layer: int) -> None:
        """Apply a layer's averaged gradients."""
        with self._timed("update", f"U{layer + 1}"):
            self.perceptron.update(layer)

    def wait(self, communication: Communication, launched: Handover) -> None:
        """Wait for an exchange, and for hosts that share a core. Raises ``ExchangeError``."""
        with self._timed("exposed"):
            communication.wait(launched)

    @contextmanager
    def _timed(self, activity: str, note: str = "") -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[activity] += time.perf_counter() - began
        if note:
            self.notes.append(note)


class Communication:
    """A thread on a core of its own choice that exchanges a perceptron's buckets while others compute."""

    def __init__(self, perceptron: Perceptron, exchange: Exchange, core: int) -> None:
        self._perceptron, self._exchange = perceptron, exchange
        self._thread = CommunicationThread(exchange, LostMeter(exchange.link.rank, exchange.plan, ()))
        self.wait(self._hand_over("a core", lambda: moved_to(core)))

    def launch(self, layer: int, then: Callable[[int], None] | None = None) -> Handover:
        """Average a layer's gradients, and do something on the thread ``then``; return at once."""
        bucket = self._perceptron.buckets[layer]

        def work() -> ExchangeCost:
            cost = self._exchange.all_reduce(bucket)
            if then is not None:
                then(layer)
            return cost

        return self._hand_over(f"the gradients of layer {layer + 1}", work, bucket.nbytes)

    def wait(self, launched: Handover) -> None:
        """Wait for an exchange. Raises ``ExchangeError``."""
        self._thread.wait(launched)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _hand_over(self, what: str, work: Callable[[], ExchangeCost], nbytes: int = 0) -> Handover:
        return self._thread.hand_over(Handover(None, what, work, nbytes))


def moved_to(core: int) -> ExchangeCost:
    """Move the calling thread to a core."""
    os.sched_setaffinity(0, {core})
    return ExchangeCost()


def naive(worker: Worker, communication: Communication) -> None:
    """Compute all gradients, then exchange and apply one layer after the other."""
    worker.forward()
    for layer in reversed(worker.perceptron.layers):
        worker.backward(layer)
    for layer in reversed(worker.perceptron.layers):
        launched = communication.launch(layer)
        worker.wait(communication, launched)
        worker.update(layer)


def overlapped(worker: Worker, communication: Communication) -> None:
    """Compute gradients, while the communication thread exchanges and applies those that are there."""
    worker.forward()
    launched = []
    for layer in reversed(worker.perceptron.layers):
        worker.backward(layer)
        launched.append(communication.launch(layer, then=worker.perceptron.update))
    for each in launched:
        worker.wait(communication, each)


def layerwise(worker: Worker, communication: Communication) -> None:
    """Launch a layer's exchange, compute the layer below, wait, launch that one, and update (figure 3b)."""
    worker.forward()
    launched: Handover | None = None
    for layer in reversed(worker.perceptron.layers):
        worker.backward(layer)
        if launched is not None:
            worker.wait(communication, launched)
        above, launched = launched, communication.launch(layer)
        if above is not None:
            worker.update(layer + 1)
    if launched is not None:
        worker.wait(communication, launched)
    worker.update(0)


METHODS = MappingProxyType({NAIVE: naive, OVERLAPPED: overlapped, LAYERWISE: layerwise})


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Calibrate and train for the cells of one network, as one of its ranks."""
    cores = sorted(os.sched_getaffinity(0))
    moved_to(cores[0])
    read: dict[int, Images] = {}
    for cell in cells:
        width = cell["width"]
        if width not in read:
            read[width] = images(cell["data"], width, ranks.rank, ranks.world)
        if cell["part"] == CALIBRATION:
            figures = calibrate(ranks, cell, read[width], cores[-1])
        else:
            figures = trained(ranks, cell, read[width], cores[-1 if cell["method"] == LAYERWISE else 0])
        ranks.report(cell, figures)


def trained(ranks: Ranks, cell: Cell, images: Images, core: int) -> dict[str, Any]:
    """Train with each seed, and exchange on ``core``; return seconds of a step, and accuracies.

    Seconds of a step are the medians of each training, those of its activities the hosts' mean.
    """
    found: dict[str, list[float]] = {"accuracies": [], "losses": [], "step_s": []}
    found |= {f"{each}_s": [] for each in ACTIVITIES}
    fastest_s, slowest_s, notes = float("inf"), 0.0, list[str]()
    for seed in range(cell["seeds"]):
        perceptron = _perceptron(cell, images, seed, ranks.rank, cell["steps"])
        exchange = Exchange(ranks.link, Plan(parse(cell["codec"]), "ring", SEGMENT_NBYTES))
        communication = Communication(perceptron, exchange, core)
        steps = list[dict[str, float]]()
        ranks.gather(None)
        for _ in range(cell["steps"]):
            worker, began = Worker(perceptron), time.perf_counter()
            METHODS[cell["method"]](worker, communication)
            steps.append({"step": time.perf_counter() - began, **worker.seconds})
            notes = worker.notes
        communication.close()
        hosts = ranks.gather(steps[WARM_STEPS:])
        seconds = [max(host["step"] for host in each) for each in zip(*hosts, strict=True)]
        found["step_s"].append(statistics.median(seconds))
        fastest_s, slowest_s = min(fastest_s, *seconds), max(slowest_s, *seconds)
        for each in ACTIVITIES:
            medians = [statistics.median(step[each] for step in host) for host in hosts]
            found[f"{each}_s"].append(statistics.fmean(medians))
        accuracy, loss = ranks.gather(perceptron.judge() if ranks.rank == 0 else None)[0]
        found["accuracies"].append(accuracy)
        found["losses"].append(loss)
    return {**found, "fastest_s": fastest_s, "slowest_s": slowest_s, "notes": notes}


def calibrate(ranks: Ranks, cell: Cell, images: Images, core: int) -> dict[str, float]:
    """Return what the model's parameters come from: seconds of a core, and those of an all-reduce.

    All hosts are at work at the same time, as they are in a step.
    """
    perceptron = _perceptron(cell, images, 0, ranks.rank, 2 * REPEATS)
    computing, updating = list[float](), list[float]()
    ranks.gather(None)
    for _ in range(REPEATS):
        began = time.thread_time()
        perceptron.forward()
        for layer in reversed(perceptron.layers):
            perceptron.backward(layer)
        computed = time.thread_time()
        for layer in perceptron.layers:
            perceptron.update(layer)
        computing.append(computed - began)
        updating.append(time.thread_time() - computed)
    exchange = Exchange(ranks.link, Plan(parse(IDENTITY), "ring", SEGMENT_NBYTES))
    at_work, bucket = list[float](), perceptron.buckets[0].clone()

    def all_reduce() -> None:
        began = time.thread_time()
        exchange.all_reduce(bucket)
        at_work.append(time.thread_time() - began)

    home = os.sched_getaffinity(0)
    moved_to(core)
    seconds = ranks.repeat_s(all_reduce, budget_s=float("inf"), least=REPEATS, most=REPEATS)
    os.sched_setaffinity(0, home)
    own = [statistics.median(each) for each in (computing, updating, at_work)]
    compute_s, update_s, exchange_core_s = (
        statistics.fmean(each) for each in zip(*ranks.gather(own), strict=True)
    )
    return {
        "compute_core_s": compute_s,
        "update_core_s": update_s,
        "exchange_core_s": exchange_core_s,
        "exchange_s": statistics.median(seconds),
    }


def _perceptron(cell: Cell, images: Images, seed: int, rank: int, steps: int) -> Perceptron:
    layers, width, batch = cell["layers"], cell["width"], cell["batch"]
    return Perceptron(images, layers=layers, width=width, batch=batch, seed=seed, rank=rank, steps=steps)
