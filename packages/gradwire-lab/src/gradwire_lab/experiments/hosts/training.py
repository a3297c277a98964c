"""Common parts of training runs: images, a worker's part of a step, flat gradients, and accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from gradwire.deferred import torch
from gradwire_lab.job.batches import share, shuffle
from gradwire_lab.job.data import find, load

if TYPE_CHECKING:
    from gradwire_lab.job.data import Dataset

_order = lru_cache(maxsize=1)(shuffle)


@lru_cache(maxsize=1)
def dataset(name: str) -> Dataset:
    """Return the images of a data set. The last data set is cached. Raises ``DataError``."""
    return load(name, find(name))


@contextmanager
def one_thread(seed: int | None = None) -> Iterator[None]:
    """Compute on one thread, in a fixed order of summation, with a random state of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def part_of_step(count: int, seed: int, step: int, batch: int, worker: int, workers: int) -> torch.Tensor:
    """Return the indices of one worker's images in a step (from 0), in an order that differs per epoch."""
    epoch, number = divmod(step, count // batch)
    return share(_order(count, seed, epoch), number, batch, worker, workers)


def flat(tensors: Iterable[torch.Tensor], out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the tensors concatenated into a one-dimensional tensor, in ``out`` if given."""
    return torch.cat([each.flatten() for each in tensors], out=out)


def parts_of(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views into a flat tensor with the shapes of ``tensors``, the inverse of ``flat``."""
    parts = torch.split(values, [each.numel() for each in tensors])
    return [part.view_as(each) for each, part in zip(tensors, parts, strict=True)]


def accuracy(model: torch.nn.Module, images: Dataset) -> float:
    """Return the share of the test images that a model classifies correctly."""
    with torch.inference_mode():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in images.test_batches())
    return right / len(images.test_labels)
