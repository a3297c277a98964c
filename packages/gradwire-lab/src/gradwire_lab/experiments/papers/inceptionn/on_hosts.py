"""Train on the hosts of a testbed: around a ring, or with an aggregator whose weights go down a tree.

Only the hosts import this module, because it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts.ranks import Ranks
from gradwire_lab.experiments.hosts.training import accuracy, dataset, flat, part_of_step, parts_of
from gradwire_lab.experiments.papers.inceptionn import training
from gradwire_lab.experiments.papers.inceptionn.training import WORKERS

Average = Callable[[torch.Tensor, Callable[[], None]], None]
"""Averages a gradient over the workers, and calls what updates this rank's weights."""


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Train each cell from scratch, as one of the ranks.

    A cell names the ``network``, ``data``, ``seed``, ``steps``, and ``batch`` of a worker; the collectives
    ``up`` and ``down``, where ``down`` is empty for gradients alone; the ``codec`` of gradients; and the
    ``nic``'s, if the hosts have NICs.
    """
    for cell in cells:
        ranks.report(cell, train(ranks, cell))


def train(ranks: Ranks, cell: Cell) -> Mapping[str, Any]:
    """Return the seconds of each step, those of computation in it, and the accuracy of rank 0's weights.

    Computation is the slowest rank's forward and backward passes, and the slowest update. The first step,
    which connects, is left out. Ranks before the last ``WORKERS`` only aggregate.
    """
    images, steps, worker = dataset(cell["data"]), cell["steps"], ranks.rank - (ranks.world - WORKERS)
    net = training.build(cell["network"], images.image_shape, images.classes, cell["seed"])
    parameters = [*net.parameters()]
    apply = training.updating(cell["network"], parameters, steps)
    gradient = torch.zeros(sum(each.numel() for each in parameters))
    count, batch = len(images.train_labels), WORKERS * cell["batch"]
    times, update_s = list[tuple[float, float, float]](), [0.0]

    def update() -> None:
        began = perf_counter()
        apply(gradient)
        update_s[0] = perf_counter() - began

    def compute(step: int) -> None:
        own = part_of_step(count, cell["seed"], step, batch, worker, WORKERS)
        inputs, labels = images.train_batch(own)
        loss = torch.nn.functional.cross_entropy(net(inputs), labels)
        flat(torch.autograd.grad(loss, parameters), out=gradient)

    with _averaging(ranks, cell, parameters) as average:
        for step in range(steps):
            began, update_s[0] = perf_counter(), 0.0
            if worker >= 0:
                compute(step)
            else:
                gradient.zero_()
            computed = perf_counter()
            average(gradient, update)
            times.append((perf_counter() - began, computed - began, update_s[0]))
    everyones = [each[1:] for each in ranks.gather(times)]
    return {
        "step_s": [seconds for seconds, _, _ in everyones[0]],
        "compute_s": [
            max(each[1] for each in step) + max(each[2] for each in step)
            for step in zip(*everyones, strict=True)
        ],
        "nbytes": gradient.nbytes,
        "accuracy": ranks.gather(accuracy(net, images) if ranks.rank == 0 else None)[0],
    }


@contextmanager
def _averaging(ranks: Ranks, cell: Cell, parameters: Sequence[torch.Tensor]) -> Iterator[Average]:
    """Yield a function that exchanges a step's gradients, and weights where an aggregator has them."""
    if not cell["down"]:
        plan = Plan(offload=cell["nic"].split()[0]) if cell["nic"] else Plan(parse(cell["codec"]), cell["up"])
        with ranks.linked(tos=plan.tos) if plan.tos else nullcontext(ranks.link) as link:
            ring = Exchange(link, plan)

            def around(gradient: torch.Tensor, update: Callable[[], None]) -> None:
                ring.all_reduce(gradient)
                update()

            yield around
        return
    up = Exchange(ranks.link, Plan(parse(cell["codec"]), cell["up"]))
    down = Exchange(ranks.link, Plan(algorithm=cell["down"]))

    def through_the_root(gradient: torch.Tensor, update: Callable[[], None]) -> None:
        up.reduce(gradient)
        if ranks.rank == 0:
            gradient.div_(WORKERS)
            update()
        with torch.no_grad():
            weights = flat(parameters)
            down.broadcast(weights)
            for each, part in zip(parameters, parts_of(weights, parameters), strict=True):
                each.copy_(part)

    yield through_the_root
