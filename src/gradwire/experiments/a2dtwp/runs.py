"""Train a network with all policies side by side, on a simulated device with the systems' links in turn.

A *cycle* is an update of the masters, the weights' way to the device, a forward and a backward pass. Policies
take turns batch by batch, so that whatever disturbs the machine disturbs all alike, and each cycle is timed
on one of the systems' links: what a policy makes of the weights doesn't depend on the link.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from gradwire.devices import Simulated
from gradwire.experiments.a2dtwp.images import Images, read_images
from gradwire.experiments.a2dtwp.models import blocks_of, build
from gradwire.experiments.a2dtwp.options import SYSTEMS, Options
from gradwire.experiments.a2dtwp.policies import Recorded, policy_named
from gradwire.experiments.experiment import Cell, Reporter, Row
from gradwire.training.offload.awp import calibrate_threshold
from gradwire.training.offload.host_offload import HostOffload
from gradwire.training.offload.policies import Policy, Static

SEED = 1
RATE, MOMENTUM, WEIGHT_DECAY = 0.02, 0.9, 5e-4
LAST_RATE = 0.02
"""The share of the learning rate at the end; it falls on a straight line."""
MONITORED = 30
"""Batches whose norms AWP's threshold is the mean change of."""
EVERY = 15
"""Batches between two evaluations."""
INTERVAL_SHARES = MappingProxyType({"resnet": 2})
"""ResNet's INTERVAL is half of the others', as published."""
VALIDATION = 1000
"""Images that the error is measured on."""

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Monitored:
    """What a short training showed: AWP's threshold, and the seconds of a forward and a backward pass."""

    threshold: float
    compute_s: float


def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
    """Train the cells' networks."""
    images = read_images(options.data_dir)
    validation = images.validation(VALIDATION)
    with _one_thread(), torch.random.fork_rng(devices=[]):
        for name, group in groupby(cells, key=lambda cell: str(cell["model"])):
            report.say(f"{name}: {MONITORED} batches for AWP's threshold and the links' rates")
            found = monitor(options, name, images, validation)
            trainees = {
                cell["policy"]: Trainee(
                    options, name, images.classes, _policy(options, name, cell["policy"], found)
                )
                for cell in group
            }
            for number in _train(options, trainees, images, validation, found.compute_s):
                report.say(f"{name}: {number} of {options.batches} batches")
            for policy, trainee in trainees.items():
                report({"model": name, "policy": policy, **trainee.figures(found)})
                trainee.close()


class Trainee:
    """One training with one policy.

    Attributes
    ----------
    errors
        Pairs of a number of batches and the validation error after them.
    """

    def __init__(self, options: Options, model: str, classes: int, policy: Policy) -> None:
        self._policy, self._device = policy, Simulated(prompt=True)
        masters = build(model, classes, options.narrower, SEED)
        self._optimizer = torch.optim.SGD(
            masters.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
        )
        self._schedule = torch.optim.lr_scheduler.LinearLR(self._optimizer, 1, LAST_RATE, options.batches)
        self._offload = HostOffload(
            masters, self._optimizer, policy, device=self._device, blocks=blocks_of(masters), timed=True
        )
        self.errors: list[tuple[int, float]] = []
        self._cycles: dict[str, list[dict[str, float]]] = {name: [] for name in options.systems}

    def begin(self, batch: Batch) -> None:
        """Bring gradients, which a cycle begins with."""
        self._pass(batch, 0)

    def cycle(self, number: int, batch: Batch, system: str, compute_s: float) -> None:
        """Update the weights and pass the batch of this number through them, on the link of a system."""
        rates = link_rates(system, compute_s, 4 * self._count)
        self._device.pace(*rates)
        before = self._counts()
        began = time.perf_counter()
        self._optimizer.step()
        updated = time.perf_counter()
        self._schedule.step()
        self._optimizer.zero_grad()
        self._pass(batch, number)
        ended = time.perf_counter()
        spent = {name: now - before[name] for name, now in self._counts().items()}
        waited = spent["exposed_s"] + spent["unpack_s"] + spent["gradient_wait_s"]
        spent["update_s"], spent["batch_s"] = updated - began, ended - began
        spent["compute_s"] = ended - updated - waited
        spent["to_host_s"] = spent.pop("gradient_nbytes") / rates[1]
        self._cycles[system].append(spent)

    def evaluate(self, batches: int, validation: Sequence[Batch]) -> float:
        """Note the error of the device's weights after so many batches, and return it."""
        self._device.pace(None, None)
        self._offload.eval()
        with torch.no_grad():
            wrong = sum(int((self._offload(x).argmax(1) != y).sum()) for x, y in validation)
        self._offload.train()
        self.errors.append((batches, wrong / sum(len(y) for _, y in validation)))
        return self.errors[-1][1]

    def figures(self, found: Monitored) -> dict[str, Any]:
        """Return the figures of a row."""
        adaptive = isinstance(self._policy, Recorded)
        bits = self._offload.bits_by_batch
        return {
            "parameters": self._count,
            "compute_s": found.compute_s,
            "errors": self.errors,
            "cycles": {system: _columns(cycles) for system, cycles in self._cycles.items()},
            "layers": self._offload.layer_names,
            "sizes": self._sizes(),
            "bits": bits if adaptive else bits[-1:],
            "norms": self._policy.norms if isinstance(self._policy, Recorded) else [],
            "threshold": found.threshold if adaptive else None,
        }

    def close(self) -> None:
        """End its threads."""
        self._offload.close()

    @property
    def _count(self) -> int:
        return sum(each.numel() for each in self._offload.model.parameters())

    def _sizes(self) -> list[int]:
        """Return how many numbers travel with each of the layers."""
        sent = [self._offload.ledger.layers[name] for name in self._offload.layer_names]
        return [each.float32_nbytes // (4 * each.sends) for each in sent]

    def _counts(self) -> dict[str, float]:
        ledger = self._offload.ledger
        seconds = ("norm_s", "pack_s", "transfer_s", "decode_s", "exposed_s", "unpack_s", "gradient_wait_s")
        found = {name: getattr(ledger, name) for name in seconds}
        total = ledger.total
        return {**found, "sent_nbytes": total.sent_nbytes, "gradient_nbytes": total.gradient_nbytes}

    def _pass(self, batch: Batch, number: int) -> None:
        torch.manual_seed(number)  # the same units drop out with each policy
        torch.autograd.backward(nn.functional.cross_entropy(self._offload(batch[0]), batch[1]))


def link_rates(system: str, compute_s: float, nbytes: int) -> tuple[float, float]:
    """Return bytes per second to the device and back, in the proportion to computation that was published."""
    published = SYSTEMS[system]
    unit_s = compute_s / published.compute_ms
    return nbytes / (unit_s * published.to_device_ms), nbytes / (unit_s * published.to_host_ms)


def monitor(options: Options, name: str, images: Images, validation: Sequence[Batch]) -> Monitored:
    """Train some batches in float32: measure the threshold as section V-A does, and forward and backward."""
    policy = Recorded(Static(32))
    trainee = Trainee(options, name, images.classes, policy)
    batches, errors, system = images.batches(options.batch_size, SEED), list[float](), options.systems[0]
    trainee.begin(next(batches))
    error = trainee.evaluate(0, validation)
    for number, batch in enumerate(islice(batches, MONITORED), 1):
        errors.append(error)
        trainee.cycle(number, batch, system, 0.001)
        if number % EVERY == 0:
            error = trainee.evaluate(number, validation)
    trainee.close()
    computing = median(trainee._cycles[system][number]["compute_s"] for number in range(MONITORED))
    return Monitored(calibrate_threshold(policy.norms[1:], errors), computing)


def _train(
    options: Options,
    trainees: Mapping[str, Trainee],
    images: Images,
    validation: Sequence[Batch],
    compute_s: float,
) -> Iterator[int]:
    """Train all side by side; yield the number of batches at each evaluation."""
    batches = images.batches(options.batch_size, SEED)
    first = next(batches)
    for each in trainees.values():
        each.begin(first)
    for number, batch in enumerate(islice(batches, options.batches), 1):
        system = options.systems[number % len(options.systems)]
        for each in trainees.values():
            each.cycle(number, batch, system, compute_s)
        if number % EVERY == 0 or number == options.batches:
            for each in trainees.values():
                each.evaluate(number, validation)
            yield number


def _policy(options: Options, model: str, name: str, found: Monitored) -> Policy:
    return policy_named(name, found.threshold, max(options.interval // INTERVAL_SHARES.get(model, 1), 1))


def _columns(cycles: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return a list for each figure of the cycles."""
    return {name: [round(each[name], 6) for each in cycles] for name in cycles[0]} if cycles else {}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let the device compute on one core, as the host packs on another one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
