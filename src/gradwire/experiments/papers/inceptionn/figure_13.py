"""Figure 13: how many more epochs a training with the NIC's codec needs for the same accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gradwire.experiments.claim import Bound, Claim, Published, at_most, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.learning import GOALS, exact_trainings
from gradwire.experiments.papers.exhibit import exhibit
from gradwire.experiments.papers.origins import RUN_TIME, chosen, origins, paper
from gradwire.experiments.papers.side_by_side import side_by_side

PLACE = "figure 13"
EXACT, CODEC = "exact", "inceptionn:2^-10"
MORE = 2
"""Published: one or two more epochs."""
EQUAL = 0.005
"""Accuracies are equal that differ by half a point at most: trainings scatter as much."""
LOST = 0.015
"""Published: the most that is lost with as many epochs."""


@dataclass(frozen=True)
class Options:
    """The networks, epochs of the exact training by data, and seeds."""

    networks: tuple[str, ...]
    epochs: tuple[tuple[str, int], ...]
    seeds: tuple[int, ...]


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network, seed, and codec; with the codec there are two more epochs."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    data = data_name()
    return [
        {
            "network": network,
            "data": data,
            "seed": seed,
            "codec": codec,
            "epochs": dict(options.epochs)[data] + more,
        }
        for network in options.networks
        for seed in options.seeds
        for codec, more in ((EXACT, 0), (CODEC, MORE))
    ]


def measure(_options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train, and return the accuracy after each epoch."""
    from gradwire.codecs import parse
    from gradwire.experiments.papers.inceptionn.training import BATCH, WORKERS, dataset, train

    images = dataset(cell["data"])
    codec = None if cell["codec"] == EXACT else parse(cell["codec"])
    of_epoch = len(images.train_labels) // (WORKERS * BATCH)
    steps = cell["epochs"] * of_epoch
    done = train(images, cell["network"], steps, cell["seed"], of_gradients=codec, every=of_epoch)
    return {"accuracies": list(done.accuracies)}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the accuracies after equal epochs, and after two more."""
    networks = dict.fromkeys(row["network"] for row in rows)
    return [
        claim
        for network in networks
        for claim in _claims(network, [row for row in rows if row["network"] == network])
    ]


def _claims(network: str, rows: Sequence[Row]) -> Iterator[Claim]:
    def ends(codec: str, more: int = 0) -> list[float]:
        place = MORE - more if codec == CODEC else 0
        return [row["accuracies"][row["epochs"] - 1 - place] for row in rows if row["codec"] == codec]

    data, few = rows[0]["data"], min(row["epochs"] for row in rows if row["codec"] == EXACT)
    exact = ends(EXACT)
    learned = (exact_trainings(f"the exact training of {network}", exact, GOALS[data]),)
    yield Claim(
        f"{network}: accuracy lost at 2^-10 with two more epochs",
        only(fmean(exact) - fmean(ends(CODEC, MORE))),
        Bound(-EQUAL, EQUAL),
        f"on {data}, {few + MORE} instead of {few}",
        published=Published(PLACE, 0.0),
        rests_on=learned,
    )
    yield Claim(
        f"{network}: accuracy lost at 2^-10 with as many epochs",
        only(fmean(exact) - fmean(ends(CODEC))),
        at_most(LOST),
        f"on {data}, {few}",
        published=Published("section VIII-B", LOST, is_limit=True),
        rests_on=learned,
    )


ORIGINS = origins(
    MORE=paper("figure 13"),
    EQUAL=chosen("half a point, because trainings scatter; three digits alone would allow 0.05 points"),
    LOST=paper("section VIII-B"),
    networks=RUN_TIME,
    epochs=RUN_TIME,
    seeds=chosen("the fewest with an interval"),
)
EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how many more epochs does the NIC's codec take?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=Options(("HDC, 5 layers, Xavier",), (("digits", 12), ("mnist", 1)), (1, 2, 3)),
    full=Options(
        ("HDC, 5 layers, He", "HDC, 5 layers, Xavier", "CNN"),
        (("digits", 30), ("mnist", 2)),
        (1, 2, 3),
    ),
    scaling="HDC and a small CNN on MNIST if GRADWIRE_DATA has it, else on scikit-learn's digits, for "
    "fewer epochs than the paper's, so that two more are a larger share of a training. Every hop of a ring "
    "of four workers encodes, as there. Rates fall after each fifth of a training's own length: with as many "
    "epochs, the one with the codec has two left.",
    origins=ORIGINS,
    seconds=(60, 1200),
    version=2,
)
