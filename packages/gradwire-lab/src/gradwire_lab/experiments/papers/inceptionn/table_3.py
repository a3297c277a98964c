"""Table III, and figure 14's ratios of full-size networks: the bits per value in the NIC's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from gradwire.deferred import torch
from gradwire_lab.experiments.claim import RATIO, Bound, Claim, Published, at_least, near, only, within
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, grouped
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.learning import GOALS, exact_trainings, first_steps
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper, side_by_side
from gradwire_lab.experiments.papers.inceptionn import full_size
from gradwire_lab.experiments.papers.inceptionn.figure_14 import OTHER_NETWORKS, RATIO_AT_6, RATIOS_AT_10
from gradwire_lab.experiments.papers.inceptionn.full_size import FULL_SIZE, UNTRIED
from gradwire_lab.experiments.papers.inceptionn.training import NETWORKS, train
from gradwire_lab.job.data import at_hand

PLACE = "table III"
EXPONENTS = (10, 8, 6)
CLASSES = (2, 10, 18, 34)
"""The number of bits of a value with its tag, by class."""
LEAST, MOST, LEAST_AT_6 = 0.75, 0.94, 0.90
"""The published range of shares of 2-bit values at 2^-10, and the least share of 2-bit values at 2^-6."""
WHOLE = 0.001
SLACK = 0.05


@dataclass(frozen=True)
class InceptionnTable3Options:
    """The options: small networks' runs, full-size ones with batches, and the interval of samples."""

    networks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    full_size: tuple[tuple[str, int], ...]
    first_steps: int
    every: int


def cells(options: InceptionnTable3Options) -> list[Cell]:
    """Return a cell for each network and seed, with the longest training run first."""
    large = [
        {"network": network, "data": "imagenet", "seed": 1, "batch": batch}
        for network, batch in options.full_size
    ]
    return [*large, *cells_of({"data": at_hand()}, network=options.networks, seed=options.seeds)]


def shares(gradient: torch.Tensor, exponent: int) -> list[float]:
    """Return the shares of values that take 2, 10, 18, and 34 bits at the bound 2^-exponent."""
    magnitude = gradient.abs()
    edges = (2.0**-exponent, 2.0 ** ((exponent + 1) // 2 - exponent), 1.0)
    below = [int((magnitude < edge).count_nonzero()) / magnitude.numel() for edge in edges]
    return [below[0], below[1] - below[0], below[2] - below[1], 1 - below[2]]


def measure(options: InceptionnTable3Options, cell: Cell) -> Mapping[str, Any]:
    """Train exactly, and count the values of gradients by class."""
    samples: dict[int, list[list[float]]] = {exponent: [] for exponent in EXPONENTS}

    def watch(step: int, gradient: torch.Tensor) -> None:
        if step % options.every == 0:
            for exponent, found in samples.items():
                found.append(shares(gradient, exponent))

    classes = {f"classes_{exponent}": found for exponent, found in samples.items()}
    name, seed = cell["network"], cell["seed"]
    if name not in FULL_SIZE:
        accuracies = train(dataset(cell["data"]), name, options.steps, seed, watch=watch)
        return {"accuracy": accuracies[options.steps], **classes}
    if reason := full_size.missing():
        return {"missing": reason}
    return {"losses": full_size.train(name, options.first_steps, cell["batch"], seed, watch), **classes}


def ratio(classes: Sequence[float]) -> float:
    """Return a gradient's compression ratio from the shares of its values in each class."""
    return 32 / sum(share * bits for share, bits in zip(classes, CLASSES, strict=True))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the shares of 2-bit values, and the ratios of full-size networks, with published figures."""
    networks = grouped(rows, "network")
    small = {network: own for network, own in networks.items() if network not in FULL_SIZE}
    learned = [
        exact_trainings(network, [row["accuracy"] for row in own], GOALS[own[0]["data"]])
        for network, own in small.items()
    ]
    found = [*_shares(small, partial(Claim, of_each=True, rests_on=learned))]
    for network in FULL_SIZE:
        found += _full_size(network, networks.get(network, [{"missing": UNTRIED}])[0])
    return found


def _shares(networks: Mapping[str, Sequence[Row]], claim: Callable[..., Claim]) -> Iterator[Claim]:
    """Yield the claims about shares of values; a network without rows has none."""

    def of_each(
        exponent: int, figure: Callable[[Sequence[Sequence[float]]], float]
    ) -> dict[str, float | None]:
        return {
            network: figure([each for row in own for each in row[f"classes_{exponent}"]]) if own else None
            for network, own in networks.items()
        }

    def mean(shares: Sequence[Sequence[float]]) -> float:
        return fmean(each[0] for each in shares)

    limit, whole = Published(PLACE, LEAST_AT_6, is_limit=True), Published(PLACE, WHOLE)
    wanted = Bound(LEAST - SLACK, MOST + SLACK)
    yield claim(
        "values of 2 bits at 2^-10", of_each(10, mean), wanted, published=Published(PLACE, (LEAST, MOST))
    )
    yield claim("values of 2 bits at 2^-6", of_each(6, mean), at_least(LEAST_AT_6), published=limit)
    largest = of_each(10, lambda shares: max(each[3] for each in shares))
    yield claim("values of 34 bits, in any gradient", largest, Bound(0.0, WHOLE), published=whole)


def _full_size(network: str, row: Row) -> Iterator[Claim]:
    missing = row.get("missing", "")
    learned = [] if missing else [first_steps(network, FULL_SIZE[network].steps, row["losses"])]
    claim = partial(Claim, system=f"({network})", rests_on=learned, not_run=missing)
    yield from _shares({network: [] if missing else [row]}, partial(claim, of_each=True))
    for exponent, wanted, published in (
        (10, within(RATIOS_AT_10, OTHER_NETWORKS), Published("section VIII-C", RATIOS_AT_10)),
        (6, near(RATIO_AT_6, OTHER_NETWORKS), Published("figure 14", RATIO_AT_6)),
    ):
        found = None if missing else fmean(map(ratio, row[f"classes_{exponent}"]))
        yield claim(f"ratio at 2^-{exponent}", only(found), wanted, unit=RATIO, published=published)


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how many bits do gradients take in the NIC's format?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=InceptionnTable3Options(("CNN", "HDC, 5 layers, Xavier"), (1, 2, 3), 168, (), 0, 4),
    full=InceptionnTable3Options(
        (*NETWORKS,), (1, 2, 3), 600, (("VGG-16", 4), ("ResNet-50", 16), ("AlexNet", 32)), 20, 4
    ),
    scaling="HDC with both numbers of layers, with two initialisations, and a small CNN, on MNIST if "
    "GRADWIRE_DATA has it, else on scikit-learn's digits. AlexNet, ResNet-50, and VGG-16 have table "
    "I's full size and the initialisation of Caffe or torchvision. Their gradients are from the "
    "first steps of a training run only, so a rule that they meet is 'too short'. AlexNet's batch "
    "is 32, not 64, and VGG-16's is 4. Images are photographs of 160 pixels, enlarged, one from "
    "each of ImageNet's classes.",
    origins={
        "EXPONENTS CLASSES LEAST MOST LEAST_AT_6 WHOLE": paper("table III"),
        "SLACK": chosen("other networks than the paper's"),
        "networks steps full_size first_steps every": RUN_TIME,
        "seeds": chosen("the minimum for an interval"),
    },
    seconds=(20, 600),
    version=3,
)
