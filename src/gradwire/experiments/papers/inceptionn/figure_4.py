"""Figure 4: accuracy with truncated gradients, and with truncated weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gradwire.experiments.claim import Claim, Published, at_least, at_most
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit

PLACE = "figure 4"
BITS = (16, 22, 24)
EXACT, GRADIENTS, WEIGHTS = "exact", "g", "w"
GENTLE, HARSH = 0.02, 0.10
"""What truncating 16 bits of gradients may cost at most, and 24 bits of weights at least."""


@dataclass(frozen=True)
class Options:
    """The networks, seeds, and epochs."""

    models: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each network, seed, and truncation."""
    from gradwire.experiments.papers.inceptionn.training import data_name

    kinds = [(EXACT, 0), *((what, bits) for what in (GRADIENTS, WEIGHTS) for bits in BITS)]
    return [
        {"model": model, "data": data_name(), "seed": seed, "of": what, "bits": bits}
        for model in options.models
        for seed in options.seeds
        for what, bits in kinds
    ]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Train, and return the accuracy after each epoch."""
    from gradwire.codecs import parse
    from gradwire.experiments.papers.inceptionn.training import dataset, train

    codec = None if cell["of"] == EXACT else parse(f"truncate:{cell['bits']}")
    done = train(
        dataset(cell["data"]),
        cell["model"],
        options.epochs,
        cell["seed"],
        of_gradients=codec if cell["of"] == GRADIENTS else None,
        of_weights=codec if cell["of"] == WEIGHTS else None,
    )
    return {"accuracies": list(done.accuracies)}


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the accuracies that truncations lose."""

    def lost(what: str, bits: int) -> dict[str, float | None]:
        return {
            model: accuracy(rows, model, EXACT, 0) - accuracy(rows, model, what, bits)
            for model in dict.fromkeys(row["model"] for row in rows)
        }

    found = [
        Claim(
            "accuracy lost by 16 bits of gradients",
            lost(GRADIENTS, 16),
            at_most(GENTLE),
            of_each=True,
            published=Published(PLACE),
        ),
        Claim(
            "accuracy lost by 24 bits of weights",
            lost(WEIGHTS, 24),
            at_least(HARSH),
            of_each=True,
            published=Published(PLACE),
        ),
    ]
    for bits in BITS[1:]:
        of_weights, of_gradients = lost(WEIGHTS, bits), lost(GRADIENTS, bits)
        more = {
            model: None if of_weights[model] is None else of_weights[model] - (of_gradients[model] or 0.0)  # type: ignore[operator]
            for model in of_weights
        }
        text = f"accuracy lost by {bits} bits of weights, beyond that by gradients"
        found.append(Claim(text, more, at_least(0.0), of_each=True, published=Published(PLACE)))
    return found


def accuracy(rows: Sequence[Row], model: str, what: str, bits: int) -> float:
    """Return the mean accuracy at the end over the seeds."""
    return fmean(
        row["accuracies"][-1] for row in rows if (row["model"], row["of"], row["bits"]) == (model, what, bits)
    )


EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do truncated gradients and weights cost in accuracy?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(("cnn",), (1, 2), 8),
    full=Options(("cnn", "hdc"), (1, 2, 3), 20),
    scaling="a small CNN (with --full, HDC, too) on MNIST if GRADWIRE_DATA has it, else on "
    "scikit-learn's digits. The paper plots the figure without numbers: the rules are its "
    "words, that gradients bear more than weights.",
    seconds=(11, 600),
)
