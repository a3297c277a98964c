"""Figure 13: how many more epochs a training with the NIC's codec needs for the same accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gradwire.experiments.claim import Claim, Published, at_most, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit

PLACE = "figure 13"
EXACT, CODEC = "exact", "inceptionn:2^-10"
MORE = 2
"""Published: one or two more epochs."""
EQUAL = 0.005
"""Accuracies are equal that differ by half a point at most."""


@dataclass(frozen=True)
class Options:
    """The network, epochs of the exact training, and seeds."""

    model: str
    epochs: int
    seeds: tuple[int, ...]


def cells(options: Options) -> list[Cell]:
    """Return a cell for each seed and codec; with the codec there are two more epochs."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    return [
        {
            "model": options.model,
            "data": data_name(),
            "seed": seed,
            "codec": codec,
            "epochs": options.epochs + more,
        }
        for seed in options.seeds
        for codec, more in ((EXACT, 0), (CODEC, MORE))
    ]


def measure(_options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train, and return the accuracy after each epoch."""
    from gradwire.codecs import parse
    from gradwire.experiments.papers.inceptionn.training import dataset, train

    codec = None if cell["codec"] == EXACT else parse(cell["codec"])
    done = train(dataset(cell["data"]), cell["model"], cell["epochs"], cell["seed"], of_gradients=codec)
    return {"accuracies": list(done.accuracies)}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the accuracies after equal epochs, and after two more."""

    def ends(codec: str, more: int) -> float:
        return fmean(
            row["accuracies"][row["epochs"] - 1 - (MORE - more if codec == CODEC else 0)]
            for row in rows
            if row["codec"] == codec
        )

    exact = ends(EXACT, 0)
    return [
        Claim(
            "accuracy lost at 2^-10 with two more epochs",
            only(exact - ends(CODEC, MORE)),
            at_most(EQUAL),
            published=Published(PLACE, 0.0),
        ),
        Claim(
            "accuracy lost at 2^-10 with as many epochs",
            only(exact - ends(CODEC, 0)),
            at_most(0.02),
            published=Published("section VIII-B", 0.015),
        ),
    ]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how many more epochs does the NIC's codec take?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options("cnn", 12, (1, 2, 3)),
    full=Options("cnn", 30, (1, 2, 3, 4, 5)),
    scaling="a small CNN on MNIST if GRADWIRE_DATA has it, else on scikit-learn's digits; 12 epochs "
    "(30 with --full), and 2 more with the codec.",
    seconds=(9, 300),
)
