"""What the hosts train: the MNIST-MLP, small networks of ImageNet's depths, and the convex last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from gradwire.experiments.experiment import Cell
from gradwire.experiments.papers.inceptionn.training import accuracy as accuracy_of
from gradwire.experiments.papers.inceptionn.training import dataset
from gradwire.experiments.papers.pipe_sgd import features, networks
from gradwire.experiments.papers.pipe_sgd.ways import TIME
from gradwire.job.batches import learning_rate, share, shuffle
from gradwire.job.models import build

Options = Mapping[str, Any]
"""The options of an exhibit, as JSON has them."""
images_of = lru_cache(maxsize=1)(dataset)


@dataclass(frozen=True)
class Task:
    """One rank's training, from weights that are the same on all ranks.

    Attributes
    ----------
    model, optimizer
        The weights, and what updates them.
    loss
        Returns the loss of this rank's share of a step's batch.
    rate
        Returns the learning rate of a step.
    accuracy
        Returns the accuracy on the test images.
    warmup_steps
        The synchronous steps before a pipeline begins.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], torch.Tensor]
    rate: Callable[[int], float]
    accuracy: Callable[[], float]
    warmup_steps: int = 0


def mnist_mlp(options: Options, cell: Cell, worker: int, workers: int) -> Task:
    """Return the MLP of 784-500-500-10; ``momenta`` and ``lrs`` of the options belong to each other."""
    images, momentum = images_of(cell["data"]), cell.get("momentum", options["momenta"][0])
    model = build("mlp", images.image_shape, images.classes, cell.get("seed", 0))
    lr = options["lrs"][options["momenta"].index(momentum)]
    return _of_images(model, images, options, cell, worker, workers, lr=lr, momentum=momentum)


def small_network(options: Options, cell: Cell, worker: int, workers: int) -> Task:
    """Return an AlexNet or a ResNet-18 with few channels."""
    images = images_of(cell["data"])
    model = networks.build(cell["network"], images.image_shape[0], images.classes, cell["seed"])
    return _of_images(
        model,
        images,
        options,
        cell,
        worker,
        workers,
        lr=options["lr"],
        momentum=0.0,
        warmup_steps=round(options["warmup"] * steps_of(options, cell)),
    )


def last_layer(options: Options, cell: Cell, worker: int, workers: int) -> Task:
    """Return the layer behind a fixed network, whose features trainings keep and timed steps compute."""
    known, batch, seed = features.read(cell["data"]), options["batch"], cell.get("seed", 0)
    layer = nn.Linear(features.COUNT, known.classes)
    for each in layer.parameters():
        nn.init.zeros_(each)
    trained = cell["kind"] not in (TIME, "plain")

    def loss(step: int) -> torch.Tensor:
        own = _share(len(known.labels), seed, step, batch, worker, workers)
        x = known.train[own] if trained else known.of_images(own)
        return nn.functional.cross_entropy(layer(x), known.labels[own])

    def accuracy() -> float:
        with torch.inference_mode():
            return float((layer(known.test).argmax(1) == known.test_labels).float().mean())

    optimizer = torch.optim.SGD(layer.parameters(), lr=options["lr"])
    return Task(layer, optimizer, loss, _schedule(options["lr"], steps_of(options, cell)), accuracy)


def _of_images(
    model: nn.Module,
    images: Any,
    options: Options,
    cell: Cell,
    worker: int,
    workers: int,
    *,
    lr: float,
    momentum: float,
    warmup_steps: int = 0,
) -> Task:
    count, seed = len(images.train_labels), cell.get("seed", 0)
    batch = min(options["batch"], count)

    def loss(step: int) -> torch.Tensor:
        x, labels = images.train_batch(_share(count, seed, step, batch, worker, workers))
        return nn.functional.cross_entropy(model(x), labels)

    def accuracy() -> float:
        return accuracy_of(model.eval(), images)

    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return Task(model, optimizer, loss, _schedule(lr, steps_of(options, cell)), accuracy, warmup_steps)


def _share(count: int, seed: int, step: int, batch: int, worker: int, workers: int) -> torch.Tensor:
    """Return the images of a worker in a step: each epoch has an order of its own."""
    epoch, number = divmod(step, count // batch)
    return share(_order(count, seed, epoch), number, batch, worker, workers)


_order = lru_cache(maxsize=1)(shuffle)


def steps_of(options: Options, cell: Cell) -> int:
    """Return the steps of a whole training: the cell's own ones, or else those of all."""
    steps: int = cell["steps"] if "steps" in cell else options["steps"]
    return steps


def _schedule(peak: float, steps: int) -> Callable[[int], float]:
    """Return the rate by step; timed steps may go beyond those of a training."""
    return lambda step: learning_rate(min(step, steps - 1), steps, peak)


TASKS: Mapping[str, Callable[[Options, Cell, int, int], Task]] = {
    "mnist-mlp": mnist_mlp,
    "small-network": small_network,
    "last-layer": last_layer,
}
