"""An experiment's claims: the figures, what is wanted of them, whether that is met, and why if it isn't."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.experiments.claim import Claim, Verdict, shown
from gradwire.tables import Column, Table


def claims_parts(judged: Sequence[Claim], names: Sequence[str] = ()) -> list[str | Table]:
    """Return the table, and a paragraph for each claim that is explained; nothing without claims."""
    if not judged:
        return []
    reasons = [claim.explained for claim in judged if claim.explained]
    return [claims_table(judged, names), "", *(part for each in reasons for part in (each, ""))]


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
                _met(claim),
            )
            for claim in judged
        ],
    )


def _met(claim: Claim) -> str:
    if claim.verdict in (Verdict.DID_NOT_LEARN, Verdict.EXPLAINED, Verdict.EXCEEDED, Verdict.TOO_SHORT):
        return str(claim.verdict)
    return "yes" if claim.is_met else "no"
