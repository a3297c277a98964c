"""Measure the extra steps of training with lossy or stale gradients, to calibrate the planner.

    python bench/steps_to_loss.py                       # every task and method; about half an hour
    python bench/steps_to_loss.py --tasks digits-mlp --seeds 2

Each method uses the same batches as the exact training run that it is compared with. Every evaluation in the
last part of a run has a loss that exact training had some steps earlier or later. The mean ratio of the run's
steps to the exact run's steps, minus 1, is the share of extra steps. ``added`` is the noise of the encodings
expected by the planner's model (``planner.loss``), from the gradients of all ranks at three moments of the
exact run. The rows are copied into ``packages/gradwire-lab/src/gradwire_lab/closed_forms/extra_steps.py``.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import torch
from torch import nn

import gradwire
from gradwire.codecs import parse
from gradwire.collectives import ring
from gradwire.links import Link, loopback
from gradwire.plan import Plan
from gradwire.planner.loss import added_noise, noise_scale
from gradwire.timing.calibrate import lost_share, sums
from gradwire_lab.experiments.loss_prediction import extra
from gradwire_lab.experiments.tasks import text_task
from gradwire_lab.job.batches import build
from gradwire_lab.job.data import load

Batch = tuple[torch.Tensor, torch.Tensor]
WORLD = 4
EVERY = 5
"""Steps between two evaluations."""
LONGER = 1.3
"""The length of exact training relative to a method's length, so that faster methods can be compared."""
MOMENTS = (0.25, 0.5, 0.75)
"""The moments at which the gradients of exact training are recorded, as shares of a run."""
METHODS = (
    "ecsq:0.5",
    "ecsq:1",
    "ecsq:2",
    "quantize:4",
    "errbound:rel=0.25",
    "topk:0.3",
    "quantize:4 +residual",
    "topk:0.1 +residual",
    "identity K=2",
)


@dataclass(frozen=True)
class Task:
    """A training task; ``steps`` is the length of each method's run."""

    model: Callable[[int], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Callable[[int, int], Iterator[Batch]]
    held_out: Batch
    steps: int

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the mean cross entropy of a batch."""
        logits = model(batch[0])
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[1].reshape(-1))


def images(
    kind: str, batch: int, steps: int, optimizer: Callable[[nn.Module], torch.optim.Optimizer]
) -> Task:
    """Return a task on scikit-learn's digits."""
    data = load("digits")

    def batches(rank: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield data.train_batch(torch.randint(len(data.train_labels), (batch,), generator=generator))

    return Task(
        lambda seed: build(kind, data.image_shape, 10, seed),
        optimizer,
        batches,
        next(data.test_batches(1000)),
        steps,
    )


def small_gpt() -> Task:
    """Return the task of a GPT of 0.8 M weights on Python's language reference, with 2 contexts per rank."""

    def make(rank: int, seed: int) -> Iterator[Batch]:
        return text_task(None, width=64, layers=3, heads=4, batch=2, rank=100 * seed + rank).batches

    def model(seed: int) -> nn.Module:
        del seed  # the same weights for all seeds: only batches differ
        return text_task(None, width=64, layers=3, heads=4, batch=2).model

    held_out = text_task(None, width=64, layers=3, heads=4, batch=2).held_out
    return Task(model, lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3), make, held_out, 120)


def sgd(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return a function that creates SGD with momentum."""
    return lambda net: torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)


TASKS: dict[str, Callable[[], Task]] = {
    "digits-mlp": lambda: images("mlp", 8, 200, sgd(0.02)),
    "digits-cnn": lambda: images("cnn", 8, 200, lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3)),
    "gpt": small_gpt,
}


@dataclass(frozen=True)
class Curve:
    """A run's losses after every ``EVERY`` steps, and the gradients of all ranks at some moments."""

    losses: list[float]
    gradients: list[list[torch.Tensor]]


def train(task: Task, seed: int, plan: Plan, steps: int, moments: Sequence[int] = ()) -> Curve:
    """Train from the initial weights; record the gradients of the steps in ``moments``.

    Without a pipeline, the ranks run in turn in one thread, which gives the same bits in a fraction of the
    time.
    """
    start, batches = task.model(seed), [task.batches(rank, seed) for rank in range(WORLD)]
    if plan.pipeline == 1:
        return _train_in_turns(task, start, batches, plan, steps, moments)
    with ThreadPoolExecutor(WORLD) as pool:
        each = pool.map(
            lambda link: _train(link, task, copy.deepcopy(start), batches[link.rank], plan, steps),
            loopback(WORLD, timeout_s=600),
        )
        return Curve(next(iter(each)), [])


def _train_in_turns(
    task: Task,
    model: nn.Module,
    batches: Sequence[Iterator[Batch]],
    plan: Plan,
    steps: int,
    moments: Sequence[int],
) -> Curve:
    optimizer, around, found = task.optimizer(model), Ring(plan), Curve([], [])
    for step in range(1, steps + 1):
        gradients = [_gradient(task, model, next(each)) for each in batches]
        if step in moments:
            found.gradients.append([each.clone() for each in gradients])
        average = around.average(gradients)
        parts = torch.split(average, [each.numel() for each in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.view(parameter.shape)
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                found.losses.append(float(task.loss(model, task.held_out)))
    return found


class Ring:
    """A ring all-reduce of all ranks' gradients in one thread, with residuals."""

    def __init__(self, plan: Plan) -> None:
        self._codec, self._keeps = plan.encoding, plan.keeps_residual
        self._kept: list[torch.Tensor] = []

    def average(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the average of the ranks' gradients; the input gradients are modified."""
        world, count = len(gradients), gradients[0].numel()
        if self._keeps:
            self._kept = self._kept or [torch.zeros(count) for _ in gradients]
            for gradient, kept in zip(gradients, self._kept, strict=True):
                gradient.add_(kept)
        total = torch.empty(count)
        for first in range(world):
            own = slice(count * first // world, count * (first + 1) // world)
            for rank in ((first + k) % world for k in range(world)):
                held = gradients[rank][own]
                payload = self._codec.encode(held)
                self._codec.decode(payload, total[own])
                if self._keeps:
                    torch.sub(held, total[own], out=self._kept[rank][own])
                if ring.owner(first, world) != rank:
                    self._codec.decode_add(payload, gradients[(rank + 1) % world][own])
        return total.div_(world)


def _train(
    link: Link, task: Task, model: nn.Module, batches: Iterator[Batch], plan: Plan, steps: int
) -> list[float]:
    losses = []
    with gradwire.PipeSGD(model, task.optimizer(model), plan, group=link) as method:
        for step in range(1, steps + 1):
            batch = next(batches)
            method.step(lambda batch=batch: task.loss(model, batch))  # type: ignore[misc]
            if step % EVERY == 0 and link.rank == 0:
                with torch.no_grad():
                    losses.append(float(task.loss(model, task.held_out)))
    return losses


def _gradient(task: Task, model: nn.Module, batch: Batch) -> torch.Tensor:
    parts = torch.autograd.grad(task.loss(model, batch), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts])


def plan_of(method: str) -> Plan:
    """Return the plan described by a method's name."""
    spec, *rest = method.split()
    pipeline = 2 if "K=2" in rest else 1
    return Plan(parse(spec), pipeline=pipeline, residual="+residual" in rest)


@dataclass(frozen=True)
class Row:
    """The result of a method's runs on a task, with the fields of ``closed_forms.extra_steps.MethodRun``."""

    task: str
    method: str
    added: float
    extra: float
    spread: float
    noise: float
    extras: list[float]


def measure(name: str, methods: Sequence[str], seeds: int) -> list[Row]:
    """Train a task with each method, from each seed."""
    task = TASKS[name]()
    noises: list[float] = []
    found: dict[str, list[float]] = {method: [] for method in methods}
    added: dict[str, list[float]] = {method: [] for method in methods}
    for seed in range(1, seeds + 1):
        moments = [int(share * task.steps) for share in MOMENTS]
        exact = train(task, seed, Plan(), int(LONGER * task.steps), moments)
        scales = [noise_scale(ranks) for ranks in exact.gradients]
        noises += scales
        for method in methods:
            plan, began = plan_of(method), time.monotonic()
            added[method] += [_added(plan, ranks, statistics.median(scales)) for ranks in exact.gradients]
            share = extra(exact.losses, train(task, seed, plan, task.steps).losses)
            found[method].append(share)
            spent_s = time.monotonic() - began
            print(f"  {name} {seed} {method}: {share:+.3f} in {spent_s:.1f} s", file=sys.stderr)
    return [
        Row(
            name,
            method,
            round(statistics.median(added[method]), 5),
            round(statistics.fmean(found[method]), 4),
            round(statistics.stdev(found[method]) if seeds > 1 else 0.0, 4),
            round(statistics.median(noises), 2),
            [round(each, 4) for each in found[method]],
        )
        for method in methods
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=";".join(METHODS))
    parser.add_argument("--seeds", type=int, default=2)
    words = parser.parse_args()
    torch.set_num_threads(1)
    for name in words.tasks.split(","):
        for row in measure(name, words.methods.split(";"), words.seeds):
            print(json.dumps(asdict(row)), flush=True)


def _added(plan: Plan, gradients: Sequence[torch.Tensor], noise: float) -> float:
    if plan.codec.EXACT:
        return 0.0
    lost = {terms: lost_share(plan.codec, total) for terms, total in sums(gradients, WORLD).items()}
    lost[3] = (lost[2] + lost[4]) / 2
    return added_noise(plan.algorithm, WORLD, noise, lost.__getitem__)


if __name__ == "__main__":
    main()
