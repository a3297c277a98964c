"""Table III: how many bits the gradients of a training take in the NIC's format, by bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Bound, Claim, Explanation, Published, at_least
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.learning import GOALS, Trainings, exact_trainings
from gradwire.experiments.papers.exhibit import each, exhibit
from gradwire.experiments.papers.inceptionn.networks import NETWORKS
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper

if TYPE_CHECKING:
    import torch

PLACE = "table III"
EXPONENTS = (10, 8, 6)
"""Of the bounds 2^-10, 2^-8, and 2^-6."""
CLASSES = (2, 10, 18, 34)
"""Bits of a value with its tag."""
LEAST, MOST, LEAST_AT_6 = 0.75, 0.94, 0.90
"""Published: values of 2 bits at 2^-10, and at 2^-6."""
SLACK = 0.05
SMALL = (
    "the fewer weights a network has, the larger its gradients are: the CNN has 22 thousand "
    "weights here, and HDC, whose share is larger, 0.8 million."
)


@dataclass(frozen=True)
class Options:
    """The networks, seeds, steps, and every how many steps a gradient is looked at."""

    networks: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    every: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network and seed."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    return [
        {"network": network, "data": data_name(), "seed": seed}
        for network in options.networks
        for seed in options.seeds
    ]


def shares(gradient: torch.Tensor, exponent: int) -> list[float]:
    """Return the shares of values that take 2, 10, 18, and 34 bits at the bound 2^-exponent."""
    magnitude = gradient.abs()
    edges = (2.0**-exponent, 2.0 ** ((exponent + 1) // 2 - exponent), 1.0)
    below = [float((magnitude < edge).double().mean()) for edge in edges]
    return [below[0], below[1] - below[0], below[2] - below[1], 1 - below[2]]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train exactly, and sort gradients of the whole training into the classes."""
    from gradwire.experiments.papers.inceptionn.training import dataset, train

    samples: dict[int, list[list[float]]] = {exponent: [] for exponent in EXPONENTS}

    def watch(step: int, gradient: torch.Tensor) -> None:
        if step % options.every == 0:
            for exponent, found in samples.items():
                found.append(shares(gradient, exponent))

    done = train(dataset(cell["data"]), cell["network"], options.steps, cell["seed"], watch=watch)
    classes = {f"classes_{exponent}": found for exponent, found in samples.items()}
    return {"accuracy": done.accuracies[-1], **classes}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the mean shares of values of 2 bits over the trainings."""
    networks = {
        network: [row for row in rows if row["network"] == network]
        for network in dict.fromkeys(row["network"] for row in rows)
    }
    learned = [_trainings(network, own) for network, own in networks.items()]

    def of_two_bits(exponent: int) -> dict[str, float]:
        name = f"classes_{exponent}"
        return {
            network: fmean(each[0] for row in own for each in row[name]) for network, own in networks.items()
        }

    whole = {
        network: max(each[3] for row in own for each in row["classes_10"])
        for network, own in networks.items()
    }
    return [
        Claim(
            "values of 2 bits at 2^-10",
            of_two_bits(10),
            Bound(LEAST - SLACK, MOST + SLACK),
            of_each=True,
            published=Published(PLACE, (LEAST, MOST)),
            otherwise=Explanation(SMALL, Bound(0.5, MOST + SLACK)),
            rests_on=learned,
        ),
        Claim(
            "values of 2 bits at 2^-6",
            of_two_bits(6),
            at_least(LEAST_AT_6),
            of_each=True,
            published=Published(PLACE, LEAST_AT_6, is_limit=True),
            rests_on=learned,
        ),
        Claim(
            "values of 34 bits, in any gradient",
            whole,
            Bound(0.0, 0.001),
            of_each=True,
            published=Published(PLACE, 0.001),
            rests_on=learned,
        ),
    ]


def _trainings(network: str, rows: Sequence[Row]) -> Trainings:
    accuracies = [row["accuracy"] for row in rows]
    return exact_trainings(network, accuracies, GOALS[rows[0]["data"]])


ORIGINS = origins(
    EXPONENTS=paper("table III"),
    CLASSES=paper("table III"),
    LEAST=paper("table III"),
    MOST=paper("table III"),
    LEAST_AT_6=paper("table III"),
    SLACK=chosen("other networks than the paper's"),
    networks=RUN_TIME,
    seeds=chosen("the fewest with an interval"),
    steps=RUN_TIME,
    every=RUN_TIME,
)
EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how many bits do gradients take in the NIC's format?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(("CNN", "HDC, 5 layers, Xavier"), (1, 2, 3), 168, 4),
    full=Options((*NETWORKS,), (1, 2, 3), 600, 4),
    scaling="a small CNN in the place of AlexNet, ResNet-50, and VGG-16, and HDC in both depths, with two"
    " initialisations; MNIST if GRADWIRE_DATA has it, else scikit-learn's digits.",
    origins=ORIGINS,
    seconds=(20, 400),
    version=2,
)
