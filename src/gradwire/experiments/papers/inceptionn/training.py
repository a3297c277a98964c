"""Train a small network with four workers whose gradients pass a codec, and keep what is asked for.

Every worker's gradient is encoded and decoded before the average, as where workers send to an aggregator.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch's import takes seconds
    import torch

    from gradwire.codecs import Codec
    from gradwire.job.data import Dataset

WORKERS, BATCH = 4, 25
"""As published for HDC: four workers with 25 images each."""
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-5
RATES = {"hdc": 0.05, "cnn": 0.05}
"""Learning rates by model, which fall to a tenth in the last third."""


@dataclass(frozen=True)
class Trained:
    """Top-1 accuracy after each epoch, from 0 to 1; and the steps of an epoch."""

    accuracies: tuple[float, ...]
    steps: int


def data_name() -> str:
    """Return ``mnist`` if ``$GRADWIRE_DATA`` holds its files, else ``digits``."""
    from gradwire.errors import DataError
    from gradwire.job.data import find

    if not os.environ.get("GRADWIRE_DATA"):
        return "digits"
    try:
        find("mnist", None)
    except DataError:
        return "digits"
    return "mnist"


def dataset(name: str) -> Dataset:
    """Return the images."""
    from gradwire.job.data import find, load

    return load(name, find(name, None))


@contextmanager
def one_thread(seed: int) -> Iterator[None]:
    """Compute on one thread, so that sums have one order, with random numbers of their own."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def train(
    images: Dataset,
    model: str,
    epochs: int,
    seed: int,
    *,
    of_gradients: Codec | None = None,
    of_weights: Codec | None = None,
    watch: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None,
    most_steps: int | None = None,
) -> Trained:
    """Train from scratch and return the accuracies.

    Parameters
    ----------
    images, model
        The data, and a model of ``gradwire.job.models``.
    of_gradients, of_weights
        What each worker's gradient passes, and the weights after each update; exact for None.
    watch
        Called in each step with its number, and the gradient of the first worker before and after the codec.
    most_steps
        Of an epoch, all for None.
    """
    import torch
    from torch import nn

    from gradwire.job.batches import share, shuffle
    from gradwire.job.models import build

    with one_thread(seed):
        net = build(model, images.image_shape, images.classes, seed)
        parameters = [*net.parameters()]
        optimizer = torch.optim.SGD(
            parameters, lr=RATES[model], momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
        )
        count = len(images.train_labels)
        steps = min(count // (WORKERS * BATCH), most_steps or count)
        falls = [max(1, 2 * epochs * steps // 3)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, 0.1)
        accuracies = []
        for epoch in range(epochs):
            order = shuffle(count, seed, epoch)
            for step in range(steps):
                mean = torch.zeros(sum(each.numel() for each in parameters))
                for worker in range(WORKERS):
                    batch, labels = images.train_batch(share(order, step, WORKERS * BATCH, worker, WORKERS))
                    loss = nn.functional.cross_entropy(net(batch), labels)
                    own = torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])
                    sent = own if of_gradients is None else _passed(of_gradients, own)
                    if watch is not None and worker == 0:
                        watch(epoch * steps + step, own, sent)
                    mean += sent / WORKERS
                _update(parameters, mean, optimizer)
                schedule.step()
                if of_weights is not None:
                    _cut(parameters, of_weights)
            accuracies.append(_accuracy(net, images))
    return Trained(tuple(accuracies), steps)


def _passed(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    import torch

    decoded = torch.empty_like(x)
    codec.decode(codec.encode(x), decoded)
    return decoded


def _update(
    parameters: list[torch.nn.Parameter], mean: torch.Tensor, optimizer: torch.optim.Optimizer
) -> None:
    place = 0
    for each in parameters:
        each.grad = mean[place : place + each.numel()].view_as(each).clone()
        place += each.numel()
    optimizer.step()


def _cut(parameters: list[torch.nn.Parameter], codec: Codec) -> None:
    import torch

    with torch.no_grad():
        for each in parameters:
            each.copy_(_passed(codec, each.flatten()).view_as(each))


def _accuracy(net: torch.nn.Module, images: Dataset) -> float:
    import torch

    with torch.inference_mode():
        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in images.test_batches())
    return right / len(images.test_labels)
