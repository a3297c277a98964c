"""The table of an experiment's claims: the figures, what is wanted of them, and whether that is met."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.experiments.claim import Claim, shown
from gradwire.tables import Column, Table


def claims_table(judged: Sequence[Claim], names: Sequence[str] = ()) -> Table:
    """Return claims with the figures of these names and their mean, or with the only figure."""
    columns = [Column.of_text("claim"), Column.of_text("on"), *map(Column, names)]
    return Table(
        [*columns, Column("mean" if names else "found"), Column("wanted"), Column("met")],
        [
            (
                claim.text,
                claim.system,
                *(shown(claim.figures.get(name), claim.unit) for name in names),
                shown(claim.mean, claim.unit),
                claim.wanted.in_words(claim.unit),
                "yes" if claim.is_met else "no",
            )
            for claim in judged
        ],
    )
