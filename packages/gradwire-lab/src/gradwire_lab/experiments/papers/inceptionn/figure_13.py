"""Figure 13: the additional epochs that training with the NIC's codec needs for the same accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gradwire.codecs import parse
from gradwire_lab.experiments.claim import Bound, Claim, Published, at_most, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, grouped, select
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.learning import GOALS, exact_trainings
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper, side_by_side
from gradwire_lab.experiments.papers.inceptionn.training import BATCH, WORKERS, train
from gradwire_lab.job.data import at_hand

PLACE = "figure 13"
EXACT, CODEC = "exact", "inceptionn:2^-10"
MORE = 2
EQUAL = 0.005
"""The difference up to which accuracies are equal: half a point, by which training runs scatter."""
LOST = 0.015


@dataclass(frozen=True)
class InceptionnFigure13Options:
    """The options: networks, epochs of the exact training run by data set, and seeds."""

    networks: tuple[str, ...]
    epochs: tuple[tuple[str, int], ...]
    seeds: tuple[int, ...]


def cells(options: InceptionnFigure13Options) -> list[Cell]:
    """Return a cell for each network, seed, and codec. The codec's runs have two more epochs."""
    data = at_hand()
    epochs = {EXACT: dict(options.epochs)[data], CODEC: dict(options.epochs)[data] + MORE}
    found = cells_of({"data": data}, network=options.networks, seed=options.seeds, codec=epochs)
    return [{**cell, "epochs": epochs[cell["codec"]]} for cell in found]


def measure(_options: InceptionnFigure13Options, cell: Cell) -> Mapping[str, Any]:
    """Train, and return the accuracy after each epoch."""
    images = dataset(cell["data"])
    codec = None if cell["codec"] == EXACT else parse(cell["codec"])
    of_epoch = len(images.train_labels) // (WORKERS * BATCH)
    steps = cell["epochs"] * of_epoch
    found = train(images, cell["network"], steps, cell["seed"], of_gradients=codec, every=of_epoch)
    return {"accuracies": [*found.values()]}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the accuracies after equal epochs, and after two more epochs."""
    return [claim for network, own in grouped(rows, "network").items() for claim in _claims(network, own)]


def _claims(network: str, rows: Sequence[Row]) -> Iterator[Claim]:
    def ends(codec: str, more: int = 0) -> list[float]:
        place = MORE - more if codec == CODEC else 0
        return [row["accuracies"][row["epochs"] - 1 - place] for row in select(rows, codec=codec)]

    data, few = rows[0]["data"], min(row["epochs"] for row in select(rows, codec=EXACT))
    exact = ends(EXACT)
    for more, wanted, text, epochs, published in (
        (
            MORE,
            Bound(-EQUAL, EQUAL),
            "two more epochs",
            f"{few + MORE} instead of {few}",
            Published(PLACE, 0.0),
        ),
        (
            0,
            at_most(LOST),
            "the same number of epochs",
            f"{few}",
            Published("section VIII-B", LOST, is_limit=True),
        ),
    ):
        yield Claim(
            f"{network}: accuracy lost at 2^-10 with {text}",
            only(fmean(exact) - fmean(ends(CODEC, more))),
            wanted,
            f"on {data}, {epochs}",
            published=published,
            rests_on=(exact_trainings(network, exact, GOALS[data]),),
        )


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "how many more epochs does training with the NIC's codec need?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=InceptionnFigure13Options(("HDC, 5 layers, Xavier",), (("digits", 12), ("mnist", 1)), (1, 2, 3)),
    full=InceptionnFigure13Options(
        ("HDC, 5 layers, He", "HDC, 5 layers, Xavier", "CNN"),
        (("digits", 30), ("mnist", 2)),
        (1, 2, 3),
    ),
    scaling="HDC and a small CNN on MNIST if GRADWIRE_DATA has it, else on scikit-learn's digits, for "
    "fewer epochs than in the paper, so two more are a larger share of a run. As in the paper, every hop "
    "of a ring of four workers encodes. Learning rates fall after each fifth of a run's own length: after "
    "as many epochs as the exact run has, the codec's run has two epochs left.",
    origins={
        "MORE": paper("figure 13"),
        "EQUAL": chosen(
            "half a point, because training runs scatter; three digits alone would allow 0.05 points"
        ),
        "LOST": paper("section VIII-B"),
        "networks epochs": RUN_TIME,
        "seeds": chosen("the minimum for an interval"),
    },
    seconds=(60, 1200),
    version=2,
)
