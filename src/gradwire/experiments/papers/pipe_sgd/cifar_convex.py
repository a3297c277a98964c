"""Figure 4's row of CIFAR100-Convex: the last layer on fixed features, trained in each way."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import RATIO, Basis, Bound, Claim, Published, near, only, within
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.learning import Trainings
from gradwire.experiments.papers.exhibit import each, exhibit
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, calibrated, chosen, origins, paper
from gradwire.experiments.papers.pipe_sgd.figure_4 import EQUAL, GOAL, OVER_D, OVER_PS
from gradwire.experiments.papers.pipe_sgd.on_links import WAYS, Task, Trainee, train
from gradwire.experiments.papers.processes import on_processes

if TYPE_CHECKING:
    import torch

    from gradwire.job.data import Dataset

PLACE = "figure 4"
ACCURACIES = {
    "PS-Sync": 0.4793,
    "D-Sync": 0.4793,
    "D-Sync+T": 0.4793,
    "Pipe-SGD": 0.4793,
    "Pipe-SGD+T": 0.4797,
}
SAVED = {("D-Sync", "PS-Sync"): 0.40, ("Pipe-SGD", "D-Sync"): 0.37, ("Pipe-SGD+T", "D-Sync+T"): 0.46}
"""Published: by what share one way's time is shorter than another's."""
WITHIN = 0.2
"""By what a saving may be below the published one, of that."""
WORKERS, BATCH, FEATURES, RATE = 4, 100, 512, 0.5
NBYTES_PER_S, LATENCY_S = 1e6, 1e-4
COMPUTE_OVER_EXCHANGE = 0.5
"""Follows from the paper: D-Sync, with half of PS-Sync's communication, takes 40 % less."""


@dataclass(frozen=True)
class Options:
    """Seeds and epochs."""

    seeds: tuple[int, ...]
    epochs: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each seed and way to train."""
    return [{"seed": seed, "run": name} for seed in options.seeds for name in ACCURACIES]


def features(images: Dataset, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what three convolutions and a fully connected layer with fixed weights make of the images.

    Of those for training, and of those for tests: tensors of images x ``FEATURES``.
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    rows, columns = images.image_shape
    fixed = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(32 * (rows // 2) * (columns // 2), FEATURES), nn.ReLU()),
    )
    with torch.no_grad():
        train = fixed(images.train_batch(torch.arange(len(images.train_labels)))[0])
        test = torch.cat([fixed(x) for x, _ in images.test_batches()])
        scale = train.std() + 1e-12
        return (train - train.mean(0)) / scale, (test - train.mean(0)) / scale


@dataclass(frozen=True)
class _LastLayer:
    """What one rank trains; a server's gradient is zero, and its part of the mean is made up for."""

    seed: int
    has_server: bool
    compute_s: float

    def __call__(self, rank: int) -> Task:
        """Return a rank's task."""
        import torch
        from torch import nn

        from gradwire.job.batches import share, shuffle
        from gradwire.job.data import load

        torch.set_num_threads(1)
        images = load("digits")
        count = len(images.train_labels)
        of_epoch, world = count // BATCH, WORKERS + self.has_server
        x, x_test = features(images, self.seed)
        labels = images.train_batch(torch.arange(count))[1]
        labels_test = torch.cat([y for _, y in images.test_batches()])
        layer = nn.Linear(FEATURES, images.classes)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)

        def loss(step: int) -> torch.Tensor:
            time.sleep(self.compute_s)
            if self.has_server and rank == 0:
                return 0.0 * layer(x[:1]).sum()  # type: ignore[no-any-return]
            order = shuffle(count, self.seed, step // of_epoch)
            own = share(order, step % of_epoch, BATCH, rank - self.has_server, WORKERS)
            return nn.functional.cross_entropy(layer(x[own]), labels[own])

        def accuracy() -> float:
            with torch.no_grad():
                return float((layer(x_test).argmax(1) == labels_test).float().mean())

        optimizer = torch.optim.SGD(layer.parameters(), lr=RATE * world / WORKERS)
        return Task(layer, optimizer, loss, accuracy)


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train the last layer in processes over paced links; a step computes for a time in proportion."""
    from gradwire.job.data import load

    images, has_server = load("digits"), cell["run"] == "PS-Sync"
    compute_s = COMPUTE_OVER_EXCHANGE * exchange_s(images.classes)
    task = _LastLayer(cell["seed"], has_server, compute_s)
    steps = options.epochs * (len(images.train_labels) // BATCH)
    found = train(
        WORKERS + has_server,
        Trainee(WAYS[cell["run"]], task, steps),
        on=on_processes,
        nbytes_per_s=NBYTES_PER_S,
        latency_s=LATENCY_S,
    )
    return {"accuracy": found.accuracy, "step_s": found.step_s, "compute_s": compute_s}


def exchange_s(classes: int) -> float:
    """Return the seconds of a ring all-reduce of the layer's gradient, by its formula."""
    from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s

    return ring_s(WORKERS, 4 * (FEATURES + 1) * classes, AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare accuracies with D-Sync's, and the times with each other."""

    def mean(name: str, what: str) -> float:
        return fmean(row[what] for row in rows if row["run"] == name)

    def trainings(*names: str) -> list[Trainings]:
        accuracies = {name: [row["accuracy"] for row in rows if row["run"] == name] for name in ACCURACIES}
        return [Trainings(name, accuracies[name], accuracies["D-Sync"], GOAL) for name in names]

    found = [
        Claim(
            f"accuracy of {name}, below D-Sync's",
            only(mean("D-Sync", "accuracy") - mean(name, "accuracy")),
            Bound(-EQUAL, EQUAL),
            published=Published(PLACE, ACCURACIES["D-Sync"] - ACCURACIES[name]),
            rests_on=trainings("D-Sync"),
        )
        for name in ACCURACIES
        if name != "D-Sync"
    ]
    for (own, other), share in SAVED.items():
        found.append(
            Claim(
                f"time saved by {own}, under {other}",
                only(1 - mean(own, "step_s") / mean(other, "step_s")),
                near(share, WITHIN),
                published=Published("section 4", share),
                basis=Basis.CALIBRATED,
                rests_on=trainings(own, other),
            )
        )
    for other, published in (("D-Sync", OVER_D), ("PS-Sync", OVER_PS)):
        found.append(
            Claim(
                f"speed-up of Pipe-SGD+T over {other}",
                only(mean(other, "step_s") / mean("Pipe-SGD+T", "step_s")),
                within(published, WITHIN),
                unit=RATIO,
                published=Published(PLACE, published),
                basis=Basis.CALIBRATED,
                rests_on=trainings("Pipe-SGD+T", other),
            )
        )
    return found


ORIGINS = origins(
    ACCURACIES=paper("figure 4"),
    SAVED=paper("section 4"),
    WITHIN=chosen("the paper's times are read off a plot"),
    WORKERS=paper("section 4"),
    BATCH=paper("section 4"),
    FEATURES=chosen("as wide as the last layer's inputs"),
    RATE=chosen("for a layer of zeros"),
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    COMPUTE_OVER_EXCHANGE=calibrated("section 4"),
    seeds=RUN_TIME,
    epochs=RUN_TIME,
)
EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, CIFAR100-Convex",
    "what accuracy and time does a convex training have in each way?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((0,), 5),
    full=Options((0, 1, 2, 3, 4), 40),
    scaling="the last layer on 512 features of scikit-learn's digits, in the place of CIFAR-100's; "
    "the layers before it are fixed, with random weights. Ranks are processes "
    "over links paced to 8 Mbit/s instead of 10 Gbit/s, and computation sleeps, for half of "
    "the exchange's time, as the paper's 40 % of PS-Sync's time implies. The server here "
    "takes more than twice the ring's time.",
    origins=ORIGINS,
    seconds=(25, 900),
)
