"""Training steps on a testbed's hosts, in the three schedules of the paper (its figures 2 and 3b).

All workers compute on the machine's first core, and software rings act as smart NICs on its last core;
without smart NICs, the ring shares the workers' core. Waits for a core or for the last worker count as
exposed communication, because a host can't distinguish them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.context import SyncContext
from gradwire.sync.thread import CallWork, CommunicationThread, Work
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts.ranks import Ranks
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.smart_nic.options import CALIBRATION, IDENTITY, LAYERWISE, NAIVE, OVERLAPPED
from gradwire_lab.job.batches import learning_rate

# The perceptron that hosts train: square layers whose passes can run separately. The paper's perceptron
# (section III) has more and wider layers. Images are projected to the layers' width, and the first ten
# outputs are the classes.

RATE, MOMENTUM = 0.05, 0.9
"""The peak learning rate, which falls along a cosine, and SGD's momentum; the paper states neither."""
PROJECTION = 0
"""The seed of the projection, which all hosts share."""


@dataclass(frozen=True)
class ProjectedImages:
    """One host's training images, and all test images, projected, with their classes."""

    own: torch.Tensor
    classes: torch.Tensor
    test: torch.Tensor
    test_classes: torch.Tensor


def images(name: str, width: int, rank: int, world: int) -> ProjectedImages:
    """Load a data set and project it to ``width`` values with a random matrix."""
    data = dataset(name)
    share = torch.arange(rank, len(data.train_labels), world)
    own, classes = data.train_batch(share)
    test, test_classes = next(data.test_batches(len(data.test_labels)))
    pixels = own[0].numel()
    generator = torch.Generator().manual_seed(PROJECTION)
    matrix = torch.randn(pixels, width, generator=generator) / pixels**0.5
    return ProjectedImages(own.flatten(1) @ matrix, classes, test.flatten(1) @ matrix, test_classes)


class Perceptron:
    """Layers of ``width`` x ``width`` weights with ReLU between them, trained by SGD with momentum.

    ``seed`` gives the weights, and with ``rank`` the batches. ``buckets`` are each layer's gradients, which
    an exchange averages. The learning rate falls to zero in ``steps``.
    """

    def __init__(
        self,
        images: ProjectedImages,
        *,
        layers: int,
        width: int,
        batch: int,
        seed: int,
        rank: int,
        steps: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layers = range(layers)
        self.weights = [
            torch.randn(width, width, generator=generator) * (2 / width) ** 0.5 for _ in self.layers
        ]
        self.buckets = [torch.zeros(width * width) for _ in self.layers]
        self._moments = [torch.zeros(width, width) for _ in self.layers]
        self._images, self._batch, self._steps = images, batch, steps
        self._draw = torch.Generator().manual_seed(1000 * seed + rank)
        self._inputs: list[torch.Tensor] = []
        self._delta = torch.empty(0)
        self._rate, self._step = 0.0, 0

    def forward(self) -> None:
        """Draw a batch, and compute all layers' outputs and the gradient of the loss."""
        drawn = torch.randint(len(self._images.own), (self._batch,), generator=self._draw)
        self._rate = learning_rate(self._step, self._steps, RATE)
        self._step += 1
        outputs, self._inputs = self._outputs(self._images.own[drawn])
        self._delta = outputs.softmax(1)
        self._delta[torch.arange(self._batch), self._images.classes[drawn]] -= 1
        self._delta /= self._batch

    def backward(self, layer: int) -> None:
        """Compute a layer's gradients in its bucket, and the gradient of the output of the layer below."""
        inputs, weights = self._inputs[layer], self.weights[layer]
        torch.mm(inputs.T, self._delta, out=self.buckets[layer].view_as(weights))
        if layer > 0:
            self._delta = torch.mm(self._delta, weights.T).mul_(inputs > 0)

    def update(self, layer: int) -> None:
        """Apply a layer's averaged gradients."""
        moment = self._moments[layer].mul_(MOMENTUM).add_(self.buckets[layer].view_as(self._moments[layer]))
        self.weights[layer].add_(moment, alpha=-self._rate)

    def judge(self) -> tuple[float, float]:
        """Return the accuracy and the loss on the test images."""
        outputs, _ = self._outputs(self._images.test)
        right = (outputs.argmax(1) == self._images.test_classes).float().mean()
        return float(right), float(cross_entropy(outputs, self._images.test_classes))

    def _outputs(self, values: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the last layer's outputs, and the inputs of each layer."""
        inputs = []
        for layer, weights in enumerate(self.weights):
            inputs.append(values)
            values = torch.mm(values, weights)
            if layer + 1 < len(self.weights):
                values.relu_()
        return values, inputs


SEGMENT_NBYTES = 1 << 18
WARM_STEPS = 3
"""The number of first steps of a training run that aren't timed. The first steps connect, and fill caches."""
REPEATS = 15
ACTIVITIES = ("forward", "backward", "update", "exposed")


class TimedWorker:
    """A perceptron whose activities on the training thread are timed, with layers numbered from 1."""

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

    def wait(self, launched: Work) -> None:
        """Wait for an exchange, and for hosts that share a core. Raises ``ExchangeError``."""
        with self._timed("exposed"):
            launched.wait()

    @contextmanager
    def _timed(self, activity: str, note: str = "") -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[activity] += time.perf_counter() - began
        if note:
            self.notes.append(note)


class Communication:
    """A thread, pinned to a core, that exchanges a perceptron's buckets while other threads compute."""

    def __init__(self, perceptron: Perceptron, exchange: Exchange, core: int) -> None:
        self._perceptron, self._context = perceptron, SyncContext(exchange)
        self._thread = CommunicationThread(self._context)
        self._put("a core", lambda _: os.sched_setaffinity(0, {core})).wait()

    def launch(self, layer: int, then: Callable[[int], None] | None = None) -> Work:
        """Start to average a layer's gradients without blocking. The thread calls ``then`` afterwards."""
        bucket = self._perceptron.buckets[layer]

        def call(exchange: Exchange) -> None:
            exchange.all_reduce(bucket)
            if then is not None:
                then(layer)

        return self._put(f"the gradients of layer {layer + 1}", call, bucket.nbytes)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.close()

    def _put(self, what: str, call: Callable[[Exchange], None], nbytes: int = 0) -> Work:
        work = CallWork(self._context, what, call, None)
        work.nbytes = nbytes
        self._thread.put(work)
        return work


def naive(worker: TimedWorker, communication: Communication) -> None:
    """Compute all gradients, then exchange and apply them layer by layer."""
    worker.forward()
    for layer in reversed(worker.perceptron.layers):
        worker.backward(layer)
    for layer in reversed(worker.perceptron.layers):
        launched = communication.launch(layer)
        worker.wait(launched)
        worker.update(layer)


def overlapped(worker: TimedWorker, communication: Communication) -> None:
    """Compute gradients while the communication thread exchanges and applies finished gradients."""
    worker.forward()
    launched = []
    for layer in reversed(worker.perceptron.layers):
        worker.backward(layer)
        launched.append(communication.launch(layer, then=worker.perceptron.update))
    for each in launched:
        worker.wait(each)


def layerwise(worker: TimedWorker, communication: Communication) -> None:
    """Compute each layer's gradients while the layer above is exchanged, and then update (figure 3b)."""
    worker.forward()
    launched: Work | None = None
    for layer in reversed(worker.perceptron.layers):
        worker.backward(layer)
        if launched is not None:
            worker.wait(launched)
        above, launched = launched, communication.launch(layer)
        if above is not None:
            worker.update(layer + 1)
    if launched is not None:
        worker.wait(launched)
    worker.update(0)


METHODS = {NAIVE: naive, OVERLAPPED: overlapped, LAYERWISE: layerwise}


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Calibrate and train the cells of one network, as one of its ranks."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    read: dict[int, ProjectedImages] = {}
    for cell in cells:
        width = cell["width"]
        if width not in read:
            read[width] = images(cell["data"], width, ranks.rank, ranks.world)
        if cell["part"] == CALIBRATION:
            figures = calibrate(ranks, cell, read[width], cores[-1])
        else:
            figures = trained(ranks, cell, read[width], cores[-1 if cell["method"] == LAYERWISE else 0])
        ranks.report(cell, figures)


def trained(ranks: Ranks, cell: Cell, images: ProjectedImages, core: int) -> dict[str, Any]:
    """Train with each seed, with exchanges on ``core``; return median step times and accuracies."""
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
            worker, began = TimedWorker(perceptron), time.perf_counter()
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


def calibrate(ranks: Ranks, cell: Cell, images: ProjectedImages, core: int) -> dict[str, float]:
    """Measure the model's parameters, while all hosts work at the same time, as in a step."""
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
    os.sched_setaffinity(0, {core})
    seconds = ranks.repeat_s(all_reduce, budget_s=float("inf"), least=REPEATS, most=REPEATS)
    os.sched_setaffinity(0, home)
    own = [statistics.median(each) for each in (computing, updating, at_work)]
    names = ("compute_core_s", "update_core_s", "exchange_core_s")
    means = [statistics.fmean(each) for each in zip(*ranks.gather(own), strict=True)]
    return {**dict(zip(names, means, strict=True)), "exchange_s": statistics.median(seconds)}


def _perceptron(cell: Cell, images: ProjectedImages, seed: int, rank: int, steps: int) -> Perceptron:
    layers, width, batch = cell["layers"], cell["width"], cell["batch"]
    return Perceptron(images, layers=layers, width=width, batch=batch, seed=seed, rank=rank, steps=steps)
