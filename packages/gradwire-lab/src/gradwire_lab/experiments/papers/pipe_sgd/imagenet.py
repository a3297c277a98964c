"""Figure 4's rows of AlexNet and ResNet-18: measured accuracies of small networks, and modelled steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradwire_lab.closed_forms.formulas import (
    AlphaBetaGamma,
    pipelined_s,
    ring_s,
    sync_s,
    worker_aggregator_s,
)
from gradwire_lab.experiments.claim import RATIO, Basis, Bound, Claim, Published, only, within
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.learning import GOALS
from gradwire_lab.experiments.papers.exhibit import chosen, exhibit, paper
from gradwire_lab.experiments.papers.inceptionn.table_2 import ITERATIONS, NBYTES, STEPS, WORKERS
from gradwire_lab.experiments.papers.pipe_sgd.figure_4 import EQUAL, OVER_D, OVER_PS
from gradwire_lab.experiments.papers.pipe_sgd.ways import TRAIN, WAYS, MeasuredWays, on_hosts
from gradwire_lab.job.data import at_hand

PLACE = "figure 4"
ALEXNET, RESNET = "AlexNet", "ResNet-18"
ACCURACIES: Mapping[str, Mapping[str, float]] = {
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
"""Each network's published top-1 accuracies with all of the paper's methods."""
FASTEST = {ALEXNET: "Pipe-SGD+Q", RESNET: "Pipe-SGD+T"}
WIRE_SHARE = {"T": 0.5, "Q": 0.25}
RESNET_NBYTES, OF_RESNET_50, TIMES_BATCH = 46.8e6, 1.82 / 4.09, 64 / 16
"""ResNet-18's bytes, its operations over ResNet-50's, and its batch over table II's."""
WITHIN = 0.1
WORLD = 4


@dataclass(frozen=True)
class ImagenetOptions:
    """The options: networks, steps, seeds, and learning rate, and the share of steps before a pipeline."""

    networks: tuple[tuple[str, int], ...]
    seeds: tuple[int, ...]
    batch: int = 100
    warmup: float = 0.1
    lr: float = 0.05


def cells(options: ImagenetOptions) -> list[Cell]:
    """Return a cell for each network, seed, and method."""
    data = at_hand()
    return [
        {"kind": TRAIN, "data": data, "network": network, "steps": steps, "seed": seed, "run": run}
        for network, steps in options.networks
        for has_server in (False, True)
        for seed in options.seeds
        for run in ACCURACIES[network]
        if WAYS[run].has_server == has_server
    ]


def modelled_s(network: str, run: str) -> float:
    """Return the step time of the published network on the published cluster, in seconds.

    AlexNet's steps, on the same GPUs and link, are from INCEPTIONN's table II, and determine the rate.
    ResNet-18's computation is ResNet-50's, scaled by operations and images.
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
    """Compare accuracies with D-Sync's, and modelled steps with both baselines."""
    data, found = rows[0]["data"], list[Claim]()
    measured, equal = MeasuredWays(rows, GOALS[data]), Bound(-EQUAL, EQUAL)
    for name in dict.fromkeys(row["network"] for row in rows):
        lost = measured.lost(ACCURACIES[name], equal, PLACE, f"{name}: ", network=name)
        found += [*(replace(each, system=f"on {data}") for each in lost), *_speedups(name)]
    return found


def _speedups(network: str) -> Iterator[Claim]:
    fastest = FASTEST[network]
    for other, published in (("D-Sync", OVER_D), ("PS-Sync", OVER_PS)):
        yield Claim(
            f"{network}: speed-up of {fastest} over {other}",
            only(modelled_s(network, other) / modelled_s(network, fastest)),
            within(published, WITHIN),
            unit=RATIO,
            published=Published(PLACE, published),
            basis=Basis.MODELLED,
        )


EXHIBIT = exhibit(
    "pipe-sgd",
    f"{PLACE}, ImageNet",
    "what accuracy do AlexNet and ResNet-18 reach, and how much shorter are their steps?",
    cells=cells,
    run=on_hosts("small-network", WORLD),
    claims=claims,
    quick=ImagenetOptions(((ALEXNET, 200),), (0,)),
    full=ImagenetOptions(((ALEXNET, 1200), (RESNET, 400)), (0, 1, 2)),
    scaling="accuracies are measured with networks of the same depth and few channels, on MNIST (in "
    "GRADWIRE_DATA, averaged to 7 px; else scikit-learn's digits). Four hosts of a testbed share "
    "two cores, with a global batch of 100, without momentum, and with a warm-up of a tenth of all "
    "steps instead of five epochs. Speed-ups are modelled, because ImageNet doesn't fit on this "
    "machine. The model has the steps and the rate of INCEPTIONN's table II, which has the same "
    "GPUs, link, and batch of AlexNet. ResNet-18's computation is ResNet-50's, scaled by "
    "operations.",
    origins={
        "ACCURACIES": paper("figure 4"),
        "WIRE_SHARE": paper("section 3.2"),
        "RESNET_NBYTES": chosen("11.7 million floats"),
        "OF_RESNET_50": chosen("by operations"),
        "TIMES_BATCH": paper("section 4 and INCEPTIONN's table I"),
        "WITHIN": chosen("a tenth, as for figure 4"),
        "WORLD": paper("section 4"),
        "networks": chosen(
            "figure 4's networks, each trained for the steps that D-Sync needs to reach the goal"
        ),
        "seeds": chosen("three, the minimum for an interval"),
        "batch": chosen("as for MNIST-MLP"),
        "warmup": paper("section 4: five epochs of a training of some fifty"),
        "lr": chosen("for small networks without momentum"),
    },
    seconds=(45, 900),
    version=3,
)
