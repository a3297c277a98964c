"""Train a narrow network with one policy: errors and bits batch by batch, without times."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from gradwire.offload.awp import AWP
from gradwire.offload.host_offload import HostOffload
from gradwire_lab.experiments.a2dtwp.images import Images, name_of, read_images
from gradwire_lab.experiments.a2dtwp.measured import SMOOTHED
from gradwire_lab.experiments.a2dtwp.models import FULL_SIDE, Shape, blocks_of, build
from gradwire_lab.experiments.a2dtwp.options import FP32, LINKS, NORMALISED, UNLIMITED, A2dtwpOptions
from gradwire_lab.experiments.a2dtwp.trainee import Batch, Learner, Trainee, layer_sizes, policy_named
from gradwire_lab.experiments.experiment import LOSSY
from gradwire_lab.experiments.hosts.training import one_thread
from gradwire_lab.job.data import find_cifar10

SIZES = {"alexnet": 64, "vgg": 32, "resnet": 32}
"""The number of images per batch, one of the paper's sizes for each network."""
RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
DECAY, DECAY_EPOCHS = 0.16, 30
"""The factor of the learning rate per 30 epochs; IV-B's "batches" would give 1e-10 after 300 of them."""
EVALUATIONS = 14
"""The number of evaluations of a training run: one per half epoch in a run of seven epochs."""
VALIDATION = 1500


def train(options: A2dtwpOptions, model: str, policy: str, seed: int) -> dict[str, Any]:
    """Return the errors of a training run, its final accuracy, and the bits of its layers."""
    folder = find_cifar10(options.data_dir)
    images = read_images(folder).part(options.images)
    name = NORMALISED.get(model, model)
    epoch = images.epoch(SIZES[name])
    validation = images.validation(VALIDATION)
    with one_thread(), warnings.catch_warnings(record=True) as warned, ExitStack() as stack:
        warnings.simplefilter("always")
        norm = model in NORMALISED or model == "resnet"
        shape = Shape(images.classes, options.narrower, norm)
        masters = build(name, shape, seed, he=not norm)  # AlexNet diverges from the published initial weights
        optimizer = optimizer_of(masters, RATE)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY ** (1 / (DECAY_EPOCHS * epoch)))
        chosen = policy_named(policy, interval=max(epoch // 2, 1), watched=epoch)
        offload = HostOffload(masters, optimizer, chosen, device="cpu", blocks=blocks_of(masters), threads=1)
        stack.callback(offload.close)
        every, errors = max(options.batches // EVALUATIONS, 1), list[tuple[int, float]]()
        batches = islice(images.batches(SIZES[name], seed), options.batches)
        for number, (x, y) in enumerate(batches, 1):
            torch.manual_seed(seed << 20 | number)  # the same dropout with every policy
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(offload(x), y))
            optimizer.step()
            schedule.step()
            if number % every == 0:
                errors.append((number, error_of(offload, validation)))
        figures = {
            "images": name_of(folder, images),
            "errors": errors,
            "accuracy": 1 - fmean(error for _, error in errors[-SMOOTHED:]),
            "bits": _changes(offload.bits_by_batch[1:]),
            "layers": offload.layer_names,
            "sizes": layer_sizes(offload),
            "threshold": chosen.threshold if isinstance(chosen, AWP) else None,
            "epoch": epoch,
        }
    sentences = [*dict.fromkeys(str(each.message) for each in warned)]
    return {**figures, **({LOSSY: sentences} if sentences else {})}


def optimizer_of(masters: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return the published optimizer of a network."""
    return torch.optim.SGD(
        masters.parameters(), lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )


def error_of(offload: HostOffload, validation: Sequence[Batch]) -> float:
    """Return the share of images that the device's weights misclassify."""
    offload.eval()
    model: Callable[[torch.Tensor], torch.Tensor] = offload
    with torch.no_grad():
        wrong = sum(int((model(x).argmax(1) != y).sum()) for x, y in validation)
    offload.train()
    return wrong / sum(len(y) for _, y in validation)


def _changes(bits: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Return each batch after which bits change, with the new bits."""
    return [
        (number, [*now]) for number, now in enumerate(bits, 1) if number == 1 or [*now] != [*bits[number - 2]]
    ]


# Milliseconds of a batch of a full-size network, on the links of the published systems.

CLASSES = 200
"""The number of classes of the published networks (table I)."""
PACED = "vgg"
"""The network whose copies take the published share of its computation on a link (tables II and III)."""
SEED = 1
WARM = 1
"""The untimed first cycles on each link, which allocate memory and send deltas in full."""


def pace(options: A2dtwpOptions) -> dict[str, Any]:
    """Return the seconds of a forward and backward pass of full-size VGG, and the bytes of its weights."""
    found = time_batches(options, PACED, FP32, 0.0, None, (UNLIMITED,))
    computed_s = median(found["cycles"][UNLIMITED]["compute_s"])
    return {"compute_s": computed_s, "nbytes": 4 * found["parameters"]}


def time_batches(
    options: A2dtwpOptions,
    model: str,
    policy: str,
    compute_s: float,
    nbytes: int | None,
    systems: tuple[str, ...] = LINKS,
) -> dict[str, Any]:
    """Return the figures of a policy's batches on each link, whose rates follow from VGG's figures."""
    with one_thread(), ExitStack() as stack:
        batches = _enlarged(read_images(find_cifar10(options.data_dir)), options.timed_size)
        masters = build(model, Shape(CLASSES, 1, norm=False, side=FULL_SIDE), SEED, he=True)
        optimizer = optimizer_of(masters, RATE * options.timed_size / SIZES[model])
        steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

        def loss(model: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> torch.Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        learner = Learner(masters, optimizer, steady, loss, lambda _: 0.0)
        trainee = Trainee(learner, policy_named(policy), systems, nbytes)
        stack.callback(trainee.close)
        trainee.begin(batches[0])
        for number in range(len(systems) * (WARM + options.timed_batches)):
            trainee.cycle(number, batches[(number + 1) % len(batches)], compute_s)
        figures = trainee.figures()
    cycles = {
        system: {name: values[WARM:] for name, values in each.items()}
        for system, each in figures["cycles"].items()
    }
    return {"parameters": figures["parameters"], "sizes": figures["sizes"], "cycles": cycles}


def _enlarged(images: Images, size: int) -> list[Batch]:
    """Return four batches of images enlarged from 32 to 224 pixels."""
    batches, side = islice(images.batches(size, SEED), 4), (FULL_SIDE, FULL_SIDE)
    return [(nn.functional.interpolate(x, size=side), y) for x, y in batches]
