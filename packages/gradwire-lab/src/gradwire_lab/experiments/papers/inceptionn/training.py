"""Train a network with four workers whose gradients travel around a ring, through a codec in every hop.

Gradients are exchanged as training with gradwire does it (Algorithm 1 of the paper): each hop encodes the
partial sum, and the owner of a finished chunk encodes it once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.deferred import torch
from gradwire_lab.experiments.hosts.training import accuracy, flat, one_thread, part_of_step, parts_of
from gradwire_lab.job import batches as models

if TYPE_CHECKING:
    from gradwire.codecs import Codec
    from gradwire_lab.job.data import Dataset

# The networks that INCEPTIONN's figures are trained on here: HDC in two depths, and a small CNN.

HIDDEN = 500
HE, XAVIER, DEFAULT = "He", "Xavier", "torch's default"


@dataclass(frozen=True)
class TrainedNetwork:
    """A network, how its weights are initialised, and its learning rate at the beginning.

    Its ``layers`` are fully connected with 500 hidden units; 0 is the CNN of ``gradwire_lab.job.batches``.
    Biases of HDC begin with zero, as in Caffe, which the paper's authors trained with.
    """

    layers: int
    initialisation: str
    rate: float
    rate_from: str


NETWORKS = MappingProxyType(
    {
        **{
            f"HDC, {layers} layers, {initialisation}": TrainedNetwork(layers, initialisation, 0.1, "table I")
            for layers in (3, 5)
            for initialisation in (HE, XAVIER)
        },
        "CNN": TrainedNetwork(0, DEFAULT, 0.05, "the rate of gradwire's other trainings of this network"),
    }
)
"""By name. Table I names five layers and a size of 2.5 MB, which three layers have."""


def build(name: str, image_shape: tuple[int, int], classes: int, seed: int) -> torch.nn.Module:
    """Return a network whose weights depend on ``seed`` alone."""
    from torch import nn

    network = NETWORKS[name]
    if network.layers == 0:
        return models.build("cnn", image_shape, classes, seed)
    initialise: Callable[[torch.Tensor], object] = (
        nn.init.kaiming_normal_ if network.initialisation == HE else nn.init.xavier_uniform_
    )
    sizes = [image_shape[0] * image_shape[1], *[HIDDEN] * (network.layers - 1), classes]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layer = nn.Linear(inputs, outputs)
            initialise(layer.weight)
            nn.init.zeros_(layer.bias)
            modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


WORKERS, BATCH = 4, 25
"""As published for HDC in table I: four workers with 25 images each."""
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-5
"""As in table I."""
FALLS, FALL = 5, 0.2
"""The learning rate is divided by 5 after each fifth of a training, as table I has it for HDC."""


@dataclass(frozen=True)
class TrainingResult:
    """Top-1 accuracies from 0 to 1, and the steps after which they were measured."""

    accuracies: tuple[float, ...]
    steps: tuple[int, ...]


def train(
    images: Dataset,
    network: str,
    steps: int,
    seed: int,
    *,
    of_gradients: Codec | None = None,
    of_weights: Codec | None = None,
    watch: Callable[[int, torch.Tensor], None] | None = None,
    every: int | None = None,
) -> TrainingResult:
    """Train a network of ``NETWORKS`` from scratch, and return accuracies.

    Gradients pass ``of_gradients`` in every hop of the ring, and weights ``of_weights`` after each update;
    both are exact for None. ``watch`` gets each step's number, from 0 up, and the first worker's gradient,
    which becomes the average afterwards. ``every`` steps lie between two accuracies; None is for the one at
    the end.
    """
    with one_thread(seed), _ring(of_gradients) as average:
        net = build(network, images.image_shape, images.classes, seed)
        parameters = [*net.parameters()]
        update = updating(network, parameters, steps)
        count, batch = len(images.train_labels), WORKERS * BATCH
        accuracies, measured = list[float](), list[int]()
        for step in range(steps):
            gradients = []
            for worker in range(WORKERS):
                inputs, labels = images.train_batch(part_of_step(count, seed, step, batch, worker, WORKERS))
                loss = torch.nn.functional.cross_entropy(net(inputs), labels)
                gradients.append(flat(torch.autograd.grad(loss, parameters)))
            if watch is not None:
                watch(step, gradients[0])
            update(average(gradients))
            if of_weights is not None:
                _cut(parameters, of_weights)
            if step + 1 == steps or (every is not None and (step + 1) % every == 0):
                accuracies.append(accuracy(net, images))
                measured.append(step + 1)
    return TrainingResult(tuple(accuracies), tuple(measured))


def updating(
    network: str, parameters: Sequence[torch.nn.Parameter], steps: int
) -> Callable[[torch.Tensor], None]:
    """Return a function that applies a flat gradient to a network's weights, once in each of ``steps``."""
    optimizer = torch.optim.SGD(
        parameters, NETWORKS[network].rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )
    falls = [max(1, steps * fall // FALLS) for fall in range(1, FALLS)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, FALL)

    def update(gradient: torch.Tensor) -> None:
        for each, part in zip(parameters, parts_of(gradient, parameters), strict=True):
            each.grad = part
        optimizer.step()
        schedule.step()

    return update


@contextmanager
def _ring(codec: Codec | None) -> Iterator[Callable[[Sequence[torch.Tensor]], torch.Tensor]]:
    """Yield a function that averages the workers' gradients around a ring, and returns rank 0's average."""
    from gradwire.exchange import Exchange
    from gradwire.links import loopback
    from gradwire.plan import Plan

    plan = Plan() if codec is None else Plan(codec)
    links = loopback(WORKERS)
    exchanges = [Exchange(link, plan) for link in links]

    def average(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        pending = [
            pool.submit(exchange.all_reduce, gradient)
            for exchange, gradient in zip(exchanges, gradients, strict=True)
        ]
        for each in pending:
            each.result()
        return gradients[0]

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="worker") as pool:
        try:
            yield average
        finally:
            for link in links:
                link.close()


def passed(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    """Return values after a codec has encoded and decoded them once."""
    decoded = torch.empty_like(x)
    codec.decode(codec.encode(x), decoded)
    return decoded


def _cut(parameters: list[torch.nn.Parameter], codec: Codec) -> None:
    with torch.no_grad():
        for each in parameters:
            each.copy_(passed(codec, each.flatten()).view_as(each))
