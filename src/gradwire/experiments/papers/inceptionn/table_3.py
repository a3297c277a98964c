"""Table III: how many bits the gradients of a training take in the NIC's format, by bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import Bound, Claim, Explanation, Published, at_least
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit

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
    """The networks, epochs, and every how many steps a gradient is looked at."""

    models: tuple[str, ...]
    epochs: int
    every: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    return [{"model": model, "data": data_name()} for model in options.models]


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

    def watch(step: int, gradient: torch.Tensor, _sent: torch.Tensor) -> None:
        if step % options.every == 0:
            for exponent, found in samples.items():
                found.append(shares(gradient, exponent))

    train(dataset(cell["data"]), cell["model"], options.epochs, 1, watch=watch)
    return {f"classes_{exponent}": found for exponent, found in samples.items()}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the mean shares of values of 2 bits over the training."""

    def of_two_bits(exponent: int) -> dict[str, float | None]:
        name = f"classes_{exponent}"
        return {row["model"]: sum(each[0] for each in row[name]) / len(row[name]) for row in rows}

    whole = {row["model"]: max(each[3] for each in row["classes_10"]) for row in rows}
    return [
        Claim(
            "values of 2 bits at 2^-10",
            of_two_bits(10),
            Bound(LEAST - SLACK, MOST + SLACK),
            of_each=True,
            published=Published(PLACE, (LEAST, MOST)),
            otherwise=Explanation(SMALL, Bound(0.5, MOST + SLACK)),
        ),
        Claim(
            "values of 2 bits at 2^-6",
            of_two_bits(6),
            at_least(LEAST_AT_6),
            of_each=True,
            published=Published(PLACE, LEAST_AT_6),
        ),
        Claim(
            "values of 34 bits, in any gradient",
            whole,
            Bound(0.0, 0.001),
            of_each=True,
            published=Published(PLACE, 0.001),
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how many bits do gradients take in the NIC's format?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(("cnn", "hdc"), 8, 4),
    full=Options(("cnn", "hdc"), 30, 4),
    scaling="a small CNN in the place of AlexNet, ResNet-50, and VGG-16, and HDC's five layers; MNIST if "
    "GRADWIRE_DATA has it, else scikit-learn's digits.",
    seconds=(5, 120),
)
