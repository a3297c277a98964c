"""Training of a network with four workers that average gradients over a ring, with a codec in every hop.

As in the paper's Algorithm 1, each hop encodes the partial sum, and a finished chunk's owner encodes it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gradwire.deferred import torch
from gradwire_lab.experiments.experiment import Cell
from gradwire_lab.experiments.hosts.training import (
    accuracy,
    dataset,
    flat,
    one_thread,
    part_of_step,
    parts_of,
)
from gradwire_lab.job import batches as models

if TYPE_CHECKING:
    from gradwire.codecs import Codec
    from gradwire.exchange.request import BucketRequest
    from gradwire.links import Link
    from gradwire.plan import Plan
    from gradwire_lab.experiments.hosts.ranks import Ranks
    from gradwire_lab.job.data import Dataset

# The networks that are trained for INCEPTIONN's figures here: HDC in two depths, and a small CNN.

HIDDEN = 500
HE, XAVIER, DEFAULT = "He", "Xavier", "torch's default"


@dataclass(frozen=True)
class TrainedNetwork:
    """A network's fully connected layers (0: the CNN of ``job.batches``), initialization, and rate."""

    layers: int
    initialisation: str
    rate: float
    rate_from: str


NETWORKS = {
    **{
        f"HDC, {layers} layers, {initialisation}": TrainedNetwork(layers, initialisation, 0.1, "table I")
        for layers in (3, 5)
        for initialisation in (HE, XAVIER)
    },
    "CNN": TrainedNetwork(0, DEFAULT, 0.05, "the rate of gradwire's other training runs of this network"),
}
"""The networks by name; table I states five layers, but also a size of 2.5 MB, which three layers have."""


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
"""The numbers published in table I for HDC: four workers, with 25 images each."""
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-5
"""The momentum and weight decay in table I."""
FALLS, FALL = 5, 0.2
"""The phases of a training run, and the factor of the learning rate between them (HDC in table I)."""


@dataclass(frozen=True)
class TrainingOptions:
    """The options: networks, and seeds and steps of their training runs."""

    networks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int


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
) -> dict[int, float]:
    """Train a network of ``NETWORKS`` from scratch; return top-1 accuracies by the number of steps.

    ``of_gradients`` encodes gradients in every hop of the ring, and ``of_weights`` weights after each update.
    None means exact training. ``watch`` is called with each step's number, from 0, and the first worker's
    gradient, before it is averaged in place. Accuracies are measured every ``every`` steps and at the end.
    """
    net = build(network, images.image_shape, images.classes, seed)
    parameters = [*net.parameters()]
    with one_thread(seed), _ring(of_gradients, counts_of(net)) as average:
        update = updating(network, parameters, steps)
        count, batch = len(images.train_labels), WORKERS * BATCH
        accuracies = dict[int, float]()
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
                with torch.no_grad():
                    for each in parameters:
                        each.copy_(passed(of_weights, each.flatten()).view_as(each))
            if step + 1 == steps or (every is not None and (step + 1) % every == 0):
                accuracies[step + 1] = accuracy(net, images)
    return accuracies


def updating(
    network: str, parameters: Sequence[torch.nn.Parameter], steps: int
) -> Callable[[torch.Tensor], None]:
    """Return a function that applies a flat gradient to a network's weights in each of ``steps`` steps."""
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


def counts_of(net: torch.nn.Module) -> dict[str, int]:
    """Return the number of floats of each parameter, in the order of a flat gradient."""
    return {name: each.numel() for name, each in net.named_parameters()}


class FlatExchange:
    """The exchange of one worker's flat gradients as one bucket, with the lossy warnings of training.

    ``counts`` has the floats of each parameter; the default ``request`` is a whole all-reduce.
    """

    def __init__(
        self, link: Link, plan: Plan, counts: Mapping[str, int], request: BucketRequest | None = None
    ) -> None:
        from gradwire.exchange import Exchange
        from gradwire.exchange.request import BucketRequest
        from gradwire.sync.bucket.residual import Residuals
        from gradwire.sync.bucket.work import GradientBucket
        from gradwire.sync.context import SyncContext, SyncOptions
        from gradwire.sync.gradient_sync import GradientSync
        from gradwire.sync.layout import Layout, Layouts
        from gradwire.sync.ledger.ledger import Ledger

        names = (*counts,)
        context = SyncContext(Exchange(link, plan), SyncOptions(link.timeout_s), Ledger(link.rank))
        self._sync = GradientSync(context, Layouts(names), Residuals(plan, link.rank, link.world))
        layout = Layout.of_bucket(names, (*counts.values(),))
        self._bucket = partial(GradientBucket, 0, layout=layout, request=request or BucketRequest())

    def __call__(self, gradient: torch.Tensor) -> None:
        """Exchange a step's gradient in place. Raises ``ExchangeError``."""
        sync = self._sync
        sync.begin()
        work = sync.run(self._bucket(gradient), gradient, sync.context)
        sync.count(work, work.cost.total_s)
        sync.finish()


@contextmanager
def _ring(
    codec: Codec | None, counts: Mapping[str, int]
) -> Iterator[Callable[[Sequence[torch.Tensor]], torch.Tensor]]:
    """Yield a function that averages the workers' gradients with a ring, and returns rank 0's average."""
    from gradwire.links import loopback
    from gradwire.plan import Plan

    plan = Plan() if codec is None else Plan(codec)
    links = loopback(WORKERS)
    exchanges = [FlatExchange(link, plan, counts) for link in links]

    def average(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        pending = [
            pool.submit(exchange, gradient) for exchange, gradient in zip(exchanges, gradients, strict=True)
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
    """Return the values after encoding and decoding with a codec."""
    decoded = torch.empty_like(x)
    codec.decode(codec.encode(x), decoded)
    return decoded


# Training on the hosts of a testbed: with a ring, or with an aggregator that broadcasts weights with a tree.

Average = Callable[["torch.Tensor", Callable[[], None]], None]
"""A function that averages a gradient over the workers, and then updates this rank's weights."""


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Train each cell from scratch, as one of the ranks.

    A cell has collectives ``up`` and ``down`` (empty if only gradients are exchanged), the ``codec`` of
    gradients, and the codec of the ``nic``, if the hosts have NICs.
    """
    for cell in cells:
        ranks.report(cell, train_on_hosts(ranks, cell))


def train_on_hosts(ranks: Ranks, cell: Cell) -> Mapping[str, Any]:
    """Return the seconds of each step and of its computation, and the accuracy of rank 0's weights.

    Computation is the slowest rank's passes plus the slowest update. The first step, which connects, is
    omitted. Ranks before the last ``WORKERS`` only aggregate.
    """
    images, steps, worker = dataset(cell["data"]), cell["steps"], ranks.rank - (ranks.world - WORKERS)
    net = build(cell["network"], images.image_shape, images.classes, cell["seed"])
    parameters = [*net.parameters()]
    apply = updating(cell["network"], parameters, steps)
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

    with _averaging(ranks, cell, parameters, counts_of(net)) as average:
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
    compute_s = [
        max(each[1] for each in step) + max(each[2] for each in step) for step in zip(*everyones, strict=True)
    ]
    return {
        "step_s": [seconds for seconds, _, _ in everyones[0]],
        "compute_s": compute_s,
        "nbytes": gradient.nbytes,
        "accuracy": ranks.gather(accuracy(net, images) if ranks.rank == 0 else None)[0],
    }


@contextmanager
def _averaging(
    ranks: Ranks, cell: Cell, parameters: Sequence[torch.Tensor], counts: Mapping[str, int]
) -> Iterator[Average]:
    """Yield a function that exchanges a step's gradients, and an aggregator's weights."""
    from gradwire.codecs import parse
    from gradwire.exchange import Exchange
    from gradwire.exchange.request import BucketRequest, Half
    from gradwire.plan import Plan

    if not cell["down"]:
        plan = Plan(offload=cell["nic"].split()[0]) if cell["nic"] else Plan(parse(cell["codec"]), cell["up"])
        with ranks.linked(tos=plan.tos) if plan.tos else nullcontext(ranks.link) as link:
            ring = FlatExchange(link, plan, counts)

            def around(gradient: torch.Tensor, update: Callable[[], None]) -> None:
                ring(gradient)
                update()

            yield around
        return
    to_root = BucketRequest(Half.REDUCE)
    up = FlatExchange(ranks.link, Plan(parse(cell["codec"]), cell["up"]), counts, to_root)
    down = Exchange(ranks.link, Plan(algorithm=cell["down"]))

    def through_the_root(gradient: torch.Tensor, update: Callable[[], None]) -> None:
        up(gradient)
        if ranks.rank == 0:
            gradient.div_(WORKERS)
            update()
        with torch.no_grad():
            weights = flat(parameters)
            down.broadcast(weights)
            for each, part in zip(parameters, parts_of(weights, parameters), strict=True):
                each.copy_(part)

    yield through_the_root
