"""Which images, in which order, at which learning rate: the same for every method."""

from __future__ import annotations

import math

import torch

RISE = 0.1
"""The share of a run's steps in which the learning rate rises."""


def lengths(steps: int, every: int) -> list[int]:
    """Return how many steps lie between evaluations, one every ``every`` steps and one at the end."""
    whole, rest = divmod(steps, every)
    return [every] * whole + ([rest] if rest else [])


def shuffle(images: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of the images in an epoch, the same on every rank."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % (1 << 63))
    return torch.randperm(images, generator=generator)


def share(order: torch.Tensor, number: int, batch: int, rank: int, workers: int) -> torch.Tensor:
    """Return the images of worker ``rank`` in the global batch ``number`` of an epoch."""
    size = batch // workers
    start = number * batch + rank * size
    return order[start : start + size]


def learning_rate(step: int, steps: int, peak: float, schedule: str = "cosine") -> float:
    """Return the rate of a step, counted from 0.

    It rises to ``peak`` on a straight line. Then it falls to 0 along half a cosine, or stays where
    ``schedule`` is ``constant``. The rise is for the pipeline, whose stale gradients make the steep beginning
    of a training unstable; all methods get it, so that they are compared at equal rates.
    """
    rise = math.ceil(RISE * steps)
    if step < rise:
        return peak * (step + 1) / rise
    if schedule == "constant":
        return peak
    return 0.5 * peak * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
