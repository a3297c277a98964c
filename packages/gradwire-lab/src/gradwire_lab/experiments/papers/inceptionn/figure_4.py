"""Figure 4: accuracy with truncated gradients, and with truncated weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from gradwire.codecs import parse
from gradwire_lab.experiments.claim import Claim, Published, at_least, at_most
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, grouped, select
from gradwire_lab.experiments.hosts.training import dataset
from gradwire_lab.experiments.learning import GOALS, exact_trainings
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper, side_by_side
from gradwire_lab.experiments.papers.inceptionn.training import TrainingOptions, train
from gradwire_lab.job.data import at_hand

PLACE = "figure 4"
BITS = (16, 22, 24)
EXACT, GRADIENTS, WEIGHTS = "exact", "g", "w"
GENTLE, HARSH = 0.02, 0.10
"""The most accuracy lost by 16 gradient bits (a smaller loss is none), the least by 24 weight bits."""


def cells(options: TrainingOptions) -> list[Cell]:
    """Return a cell for each network, seed, and truncation."""
    kinds = [(EXACT, 0), *((what, bits) for what in (GRADIENTS, WEIGHTS) for bits in BITS)]
    trained = cells_of({"data": at_hand()}, network=options.networks, seed=options.seeds)
    return [{**cell, "of": what, "bits": bits} for cell in trained for what, bits in kinds]


def measure(options: TrainingOptions, cell: Cell) -> Mapping[str, Any]:
    """Train, and return the final accuracy."""
    codec = None if cell["of"] == EXACT else parse(f"truncate:{cell['bits']}")
    of_gradients, of_weights = (codec if cell["of"] == what else None for what in (GRADIENTS, WEIGHTS))
    of_run = (dataset(cell["data"]), cell["network"], options.steps, cell["seed"])
    found = train(*of_run, of_gradients=of_gradients, of_weights=of_weights)
    return {"accuracies": [*found.values()]}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the losses of accuracy from truncation."""
    data, networks = rows[0]["data"], grouped(rows, "network")
    exact = {network: ends(own, EXACT, 0) for network, own in networks.items()}
    claim = partial(
        Claim,
        of_each=True,
        published=Published(PLACE),
        rests_on=[exact_trainings(network, own, GOALS[data]) for network, own in exact.items()],
    )

    def lost(what: str, bits: int) -> dict[str, float]:
        return {
            network: fmean(exact[network]) - fmean(ends(own, what, bits)) for network, own in networks.items()
        }

    found = [
        claim("accuracy lost by 16 bits of gradients", lost(GRADIENTS, 16), at_most(GENTLE)),
        claim("accuracy lost by 24 bits of weights", lost(WEIGHTS, 24), at_least(HARSH)),
    ]
    for bits in BITS[1:]:
        of_gradients = lost(GRADIENTS, bits)
        more = {network: loss - of_gradients[network] for network, loss in lost(WEIGHTS, bits).items()}
        text = f"accuracy lost by {bits} bits of weights, beyond that by gradients"
        found.append(claim(text, more, at_least(GENTLE)))
    return found


def ends(rows: Sequence[Row], what: str, bits: int) -> list[float]:
    """Return a network's final accuracies with one truncation, by seed."""
    return [row["accuracies"][-1] for row in select(rows, of=what, bits=bits)]


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do truncated gradients and weights cost in accuracy?",
    cells=cells,
    run=side_by_side(measure),
    claims=claims,
    quick=TrainingOptions(("HDC, 3 layers, He",), (1, 2, 3), 168),
    full=TrainingOptions(("CNN", "HDC, 5 layers, Xavier"), (1, 2, 3), 600),
    scaling="HDC (with --full, also a small CNN) on MNIST if GRADWIRE_DATA has it, else on scikit-learn's "
    "digits. Every hop of a ring of four workers truncates gradients. The paper plots the figure "
    "without numbers, so the rules express its words: gradients tolerate more truncation than "
    "weights.",
    origins={
        "BITS": paper("figure 4"),
        "GENTLE": chosen("two points, as for any lossy method"),
        "HARSH": chosen("clearly more than the scatter of seeds"),
        "networks steps": RUN_TIME,
        "seeds": chosen("the minimum for an interval"),
    },
    seconds=(60, 900),
    version=2,
)
