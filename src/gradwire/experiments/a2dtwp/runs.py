"""Train a network with all policies side by side, on a simulated device with the systems' links in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import median

import torch
from torch import nn

from gradwire.experiments.a2dtwp.images import Images, read_images
from gradwire.experiments.a2dtwp.models import build
from gradwire.experiments.a2dtwp.options import AWP, Options
from gradwire.experiments.a2dtwp.policies import Recorded, policy_named
from gradwire.experiments.a2dtwp.trainee import (
    Batch,
    Learner,
    Model,
    Trainee,
    one_thread,
    train_side_by_side,
)
from gradwire.experiments.experiment import Cell, Reporter, Row
from gradwire.training.offload.awp import calibrate_threshold
from gradwire.training.offload.policies import Static

SEED = 1
RATE, MOMENTUM, WEIGHT_DECAY = 0.02, 0.9, 5e-4
LAST_RATE = 0.02
"""The share of the learning rate at the end; it falls on a straight line."""
MONITORED = 30
"""Batches whose norms AWP's threshold is the mean change of."""
EVERY = 15
"""Batches between two evaluations."""
VALIDATION = 1000
"""Images that the error is measured on."""


@dataclass(frozen=True)
class Monitored:
    """What a short training showed: AWP's threshold, and the seconds of a forward and a backward pass."""

    threshold: float
    compute_s: float


def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    """Train the cells' networks."""
    images = read_images(options.data_dir)
    validation = images.validation(VALIDATION)
    interval = options.interval or images.epoch(options.batch_size)
    with one_thread(), torch.random.fork_rng(devices=[]):
        for name, group in groupby(cells, key=lambda cell: str(cell["model"])):
            report.say(f"{name}: {MONITORED} batches for AWP's threshold and the links' rates")
            found = monitor(options, name, images, validation)
            trainees = {
                cell["policy"]: Trainee(
                    _learner(options, name, images, validation),
                    policy_named(cell["policy"], found.threshold, interval),
                    options.systems,
                )
                for cell in group
            }
            batches = islice(images.batches(options.batch_size, SEED), options.batches + 1)
            for number in train_side_by_side([*trainees.values()], batches, found.compute_s, EVERY):
                report.say(f"{name}: {number} of {options.batches} batches")
            for policy, trainee in trainees.items():
                shown = {
                    "threshold": found.threshold if policy == AWP else None,
                    "compute_s": found.compute_s,
                }
                report({"model": name, "policy": policy, **trainee.figures(), **shown})
                trainee.close()


def monitor(options: Options, name: str, images: Images, validation: Sequence[Batch]) -> Monitored:
    """Train some batches in float32: measure the threshold as section V-A does, and forward and backward."""
    policy, system = Recorded(Static(32)), options.systems[0]
    trainee = Trainee(_learner(options, name, images, validation), policy, [system])
    batches = islice(images.batches(options.batch_size, SEED), MONITORED + 1)
    error, errors = trainee.evaluate(0), list[float]()
    for number in train_side_by_side([trainee], batches, 0.001, EVERY):
        errors += [error] * (number - len(errors))
        error = trainee.errors[-1][1]
    trainee.close()
    return Monitored(calibrate_threshold(policy.norms[1:], errors), median(trainee.compute_s(system)))


def _learner(options: Options, name: str, images: Images, validation: Sequence[Batch]) -> Learner:
    masters = build(name, images.classes, options.narrower, SEED)
    optimizer = torch.optim.SGD(
        masters.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )

    def error(model: Model) -> float:
        wrong = sum(int((model(x).argmax(1) != y).sum()) for x, y in validation)
        return wrong / sum(len(y) for _, y in validation)

    return Learner(
        masters,
        optimizer,
        torch.optim.lr_scheduler.LinearLR(optimizer, 1, LAST_RATE, options.batches),
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        error,
    )
