"""Figure 4's rows of AlexNet and ResNet-18: accuracies of small ones, measured, and steps, modelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any

from gradwire.experiments.claim import RATIO, Basis, Bound, Claim, Published, only, within
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.learning import exact_trainings
from gradwire.experiments.papers.exhibit import exhibit, row_of
from gradwire.experiments.papers.inceptionn.table_2 import ITERATIONS, NBYTES, STEPS, WORKERS
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper
from gradwire.experiments.papers.pipe_sgd.figure_4 import EQUAL, GOAL, OVER_D, OVER_PS
from gradwire.experiments.papers.pipe_sgd.on_links import WAYS, Task, Trainee, train
from gradwire.experiments.papers.side_by_side import side_by_side
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s, worker_aggregator_s
from gradwire.timing.closed_form.step_time import pipelined_s, sync_s

PLACE = "figure 4"
ALEXNET, RESNET = "AlexNet", "ResNet-18"
ACCURACIES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        ALEXNET: {
            "PS-Sync": 0.5697,
            "D-Sync": 0.5697,
            "D-Sync+T": 0.5655,
            "D-Sync+Q": 0.5710,
            "Pipe-SGD": 0.5683,
            "Pipe-SGD+T": 0.5698,
            "Pipe-SGD+Q": 0.5646,
        },
        RESNET: {
            "PS-Sync": 0.6610,
            "D-Sync": 0.6611,
            "D-Sync+T": 0.6602,
            "Pipe-SGD": 0.6635,
            "Pipe-SGD+T": 0.6630,
        },
    }
)
"""Published: the top-1 accuracies of all ways that the paper has for a network."""
FASTEST = {ALEXNET: "Pipe-SGD+Q", RESNET: "Pipe-SGD+T"}
WIRE_SHARE = {"T": 0.5, "Q": 0.25}
RESNET_NBYTES, OF_RESNET_50, TIMES_BATCH = 46.8e6, 1.82 / 4.09, 64 / 16
"""ResNet-18's 11.7 million floats; its operations over ResNet-50's; and its batch over that of table II."""
WITHIN = 0.1
"""By what a modelled speed-up may be below the published range."""
WORLD, BATCH, WARMUP_EPOCHS, RATE = 2, 100, 2, 0.05


@dataclass(frozen=True)
class Options:
    """Networks, their epochs, and seeds."""

    networks: tuple[str, ...]
    epochs: tuple[int, ...]
    seeds: tuple[int, ...]


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network, seed, and way to train."""
    return [
        {"network": network, "epochs": epochs, "seed": seed, "run": name}
        for network, epochs in zip(options.networks, options.epochs, strict=True)
        for seed in options.seeds
        for name in ACCURACIES[network]
    ]


def measure(_options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train the small network with two ranks, and model a step of the published one."""
    import torch
    from torch import nn

    from gradwire.experiments.papers.inceptionn.training import one_thread
    from gradwire.experiments.papers.pipe_sgd.networks import build
    from gradwire.job.batches import share, shuffle
    from gradwire.job.data import load

    images, seed = load("digits"), cell["seed"]
    count = len(images.train_labels)
    of_epoch = count // BATCH
    steps = cell["epochs"] * of_epoch

    def task(rank: int) -> Task:
        model = build(cell["network"], images.classes, seed)

        def loss(step: int) -> torch.Tensor:
            order = shuffle(count, seed, step // of_epoch)
            x, labels = images.train_batch(share(order, step % of_epoch, BATCH, rank, WORLD))
            return nn.functional.cross_entropy(model(x), labels)

        def accuracy() -> float:
            model.eval()
            with torch.inference_mode():
                right = sum(int((model(x).argmax(1) == y).sum()) for x, y in images.test_batches())
            return right / len(images.test_labels)

        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        return Task(model, optimizer, loss, accuracy, falls_at=2 * steps // 3)

    with one_thread(seed):
        found = train(WORLD, Trainee(WAYS[cell["run"]], task, steps, WARMUP_EPOCHS * of_epoch))
    return {"accuracy": found.accuracy, "step_s": modelled_s(cell["network"], cell["run"])}


def modelled_s(network: str, run: str) -> float:
    """Return the seconds of a step of the published network on the published cluster.

    INCEPTIONN's table II has the steps of AlexNet with the same batch on the same GPUs and line; the rate
    follows from its communication. ResNet-18 computes as long as ResNet-50 there, by operations and images.
    """
    step = STEPS[ALEXNET if network == ALEXNET else "ResNet-50"]
    compute_s, update_s = step.forward_s + step.backward_s + step.gpu_copy_s, step.update_s
    nbytes = NBYTES[ALEXNET]
    unit_s = worker_aggregator_s(WORKERS, nbytes, AlphaBetaGamma(0.0, 1.0))
    link = AlphaBetaGamma(0.0, STEPS[ALEXNET].communicate_s / ITERATIONS / unit_s)
    if network == RESNET:
        nbytes = RESNET_NBYTES
        compute_s *= OF_RESNET_50 * TIMES_BATCH
        update_s *= nbytes / NBYTES["ResNet-50"]
    method, _, codec = run.partition("+")
    exchange = worker_aggregator_s if method == "PS-Sync" else ring_s
    total_s = pipelined_s if method == "Pipe-SGD" else sync_s
    return total_s(
        1,
        update_s=update_s / ITERATIONS,
        compute_s=compute_s / ITERATIONS,
        communicate_s=exchange(WORKERS, nbytes * WIRE_SHARE.get(codec, 1.0), link),
    )


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare accuracies with D-Sync's, and modelled steps with those of both baselines."""
    networks = dict.fromkeys(row["network"] for row in rows)
    return [
        claim for network in networks for claim in (*_accuracies(rows, network), *_speedups(rows, network))
    ]


def _accuracies(rows: Sequence[Row], network: str) -> Iterator[Claim]:
    def ends(name: str) -> list[float]:
        return [row["accuracy"] for row in rows if (row["network"], row["run"]) == (network, name)]

    published, exact = ACCURACIES[network], ends("D-Sync")
    for name, accuracy in published.items():
        if name != "D-Sync":
            yield Claim(
                f"{network}: accuracy of {name}, below D-Sync's",
                only(fmean(exact) - fmean(ends(name))),
                Bound(-EQUAL, EQUAL),
                published=Published(PLACE, published["D-Sync"] - accuracy),
                rests_on=[exact_trainings(f"{network}, D-Sync", exact, GOAL)],
            )


def _speedups(rows: Sequence[Row], network: str) -> Iterator[Claim]:
    fastest_s = row_of(rows, network=network, run=FASTEST[network])["step_s"]
    for other, published in (("D-Sync", OVER_D), ("PS-Sync", OVER_PS)):
        yield Claim(
            f"{network}: speed-up of {FASTEST[network]} over {other}",
            only(row_of(rows, network=network, run=other)["step_s"] / fastest_s),
            within(published, WITHIN),
            unit=RATIO,
            published=Published(PLACE, published),
            basis=Basis.MODELLED,
        )


ORIGINS = origins(
    ACCURACIES=paper("figure 4"),
    WIRE_SHARE=paper("section 3.2"),
    RESNET_NBYTES=chosen("11.7 million floats"),
    OF_RESNET_50=chosen("by operations"),
    TIMES_BATCH=paper("section 4 and INCEPTIONN's table I"),
    WITHIN=chosen("published speed-ups have two digits"),
    WORLD=RUN_TIME,
    BATCH=paper("section 4"),
    WARMUP_EPOCHS=RUN_TIME,
    RATE=chosen("for small networks on digits"),
    networks=paper("figure 4"),
    epochs=RUN_TIME,
    seeds=RUN_TIME,
)
EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, ImageNet",
    "what accuracy do AlexNet and ResNet-18 reach, and how much shorter are their steps?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=Options((ALEXNET, RESNET), (16, 8), (0,)),
    full=Options((ALEXNET, RESNET), (40, 20), (0, 1, 2, 3, 4)),
    scaling="accuracies are measured: networks of the same depth with few channels, on "
    "scikit-learn's digits, by two ranks with a global batch of 100, without momentum, with "
    "a rate that falls to a tenth in the last third, and with a warm-up of two epochs "
    "instead of five. Speed-ups are modelled, because ImageNet doesn't fit this machine: "
    "with the steps and the rate of INCEPTIONN's table II, which has the same GPUs, line, "
    "and AlexNet's batch, and with ResNet-50's computation for ResNet-18, by operations.",
    origins=ORIGINS,
    seconds=(55, 900),
)
