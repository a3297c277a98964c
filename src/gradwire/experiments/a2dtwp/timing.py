"""Milliseconds of a batch of a network in full size, on the links of the published systems."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from torch import nn

from gradwire.experiments.a2dtwp.images import Images, read_images
from gradwire.experiments.a2dtwp.models import FULL_SIDE, Shape, build
from gradwire.experiments.a2dtwp.options import FP32, LINKS, UNLIMITED, Options
from gradwire.experiments.a2dtwp.policies import policy_named
from gradwire.experiments.a2dtwp.trainee import Batch, Learner, Trainee, one_thread
from gradwire.experiments.a2dtwp.training import RATES, SIZES, optimizer_of
from gradwire.job.data import find_cifar10

CLASSES = 200
"""The classes of the published networks (table I)."""
PACED = "vgg"
"""The network of tables II and III: its copies take the published share of its computation on a link."""
SEED = 1
WARM = 1
"""The first cycles on each link, which aren't counted: memory is new, and deltas are sent in full."""


def pace(options: Options) -> dict[str, Any]:
    """Return the seconds of a forward and a backward pass of VGG in full size, and its bytes of weights."""
    found = _cycles(options, PACED, FP32, (UNLIMITED,), 0.0, None)
    return {
        "compute_s": median(found["cycles"][UNLIMITED]["compute_s"]),
        "nbytes": 4 * found["parameters"],
    }


def time_batches(options: Options, model: str, policy: str, compute_s: float, nbytes: int) -> dict[str, Any]:
    """Return a policy's batches on each link, whose rates follow from VGG's computation and bytes."""
    return _cycles(options, model, policy, LINKS, compute_s, nbytes)


def _cycles(
    options: Options,
    model: str,
    policy: str,
    systems: tuple[str, ...],
    compute_s: float,
    nbytes: int | None,
) -> dict[str, Any]:
    with one_thread(), torch.random.fork_rng(devices=[]):
        images = read_images(find_cifar10(options.data_dir))
        batches = _enlarged(images, options.timed_size)
        masters = build(model, Shape(CLASSES, 1, norm=False, side=FULL_SIDE), SEED, he=True)
        optimizer = optimizer_of(masters, RATES[model] * options.timed_size / SIZES[model])
        steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        learner = Learner(
            masters,
            optimizer,
            steady,
            lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
            lambda _: 0.0,
        )
        trainee = Trainee(learner, policy_named(policy), systems, nbytes)
        trainee.begin(batches[0])
        count = len(systems) * (WARM + options.timed_batches)
        for number in range(count):
            trainee.cycle(number, batches[(number + 1) % len(batches)], compute_s)
        figures = trainee.figures()
        trainee.close()
    cycles = {
        system: {name: values[WARM:] for name, values in each.items()}
        for system, each in figures["cycles"].items()
    }
    return {"parameters": figures["parameters"], "sizes": figures["sizes"], "cycles": cycles}


def _enlarged(images: Images, size: int, count: int = 4) -> list[Batch]:
    """Return batches of images with 224 pixels instead of 32."""
    batches = images.batches(size, SEED)
    return [
        (nn.functional.interpolate(x, size=(FULL_SIDE, FULL_SIDE)), y)
        for (x, y) in (next(batches) for _ in range(count))
    ]
