"""An exhibit: a table or figure of a paper, the run of its counterpart, and what is claimed of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic

from gradwire.experiments.claim import Claim
from gradwire.experiments.claims_table import claims_table
from gradwire.experiments.experiment import Cell, Experiment, Options, Reporter, Row
from gradwire.experiments.papers.origins import Origins
from gradwire.tables import Table

NO_ORIGINS: Origins = MappingProxyType({})
Run = Callable[[Options, Sequence[Cell], Sequence[Row], Reporter], None]
Judge = Callable[[Sequence[Row]], Sequence[Claim]]


@dataclass(frozen=True)
class Exhibit(Generic[Options]):
    """A table or figure of a paper and its counterpart here.

    Attributes
    ----------
    paper, place
        Which paper, and where in it.
    experiment
        Measures or models the counterpart, and keeps the rows in a record.
    quick, full
        The experiment's options for a run of minutes and for one of hours.
    claims
        Returns the claims for all rows. Their figures come from the rows alone.
    scaling
        How sizes here differ from the paper's, in words.
    seconds
        About how long the run takes on two cores, with ``quick`` and with ``full``.
    origins
        Where each option, and each number of the module, comes from.
    """

    paper: str
    place: str
    experiment: Experiment[Options]
    quick: Options
    full: Options
    claims: Judge
    scaling: str
    seconds: tuple[float, float]
    origins: Origins = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name on the command line, and that of the record's folder."""
        return _name(self.paper, self.place)

    def options(self, full: bool) -> Options:
        """Return the options of a run."""
        return self.full if full else self.quick


def exhibit(
    paper: str,
    place: str,
    question: str,
    *,
    cells: Callable[[Options], Sequence[Cell]],
    run: Run[Options],
    claims: Judge,
    quick: Options,
    full: Options,
    scaling: str,
    seconds: tuple[float, float],
    origins: Origins = NO_ORIGINS,
    version: int = 1,
) -> Exhibit[Options]:
    """Return an exhibit with an experiment of its own, whose table is that of the claims."""

    def table(rows: Sequence[Row]) -> list[str | Table]:
        return [claims_table(claims(rows))]

    experiment = Experiment(
        name=_name(paper, place),
        question=question,
        add_arguments=lambda _parser: None,
        read=lambda _words: quick,
        cells=cells,
        run=run,
        table=table,
        version=version,
    )
    return Exhibit(paper, place, experiment, quick, full, claims, scaling, seconds, origins)


def _name(paper: str, place: str) -> str:
    return re.sub("[^a-z0-9]+", "-", f"{paper} {place}".lower()).strip("-")


def each(measure: Callable[[Options, Cell], Mapping[str, Any]]) -> Run[Options]:
    """Return a run that measures one cell after the other; ``measure`` returns a cell's figures."""

    def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
        for cell in cells:
            report({**cell, **measure(options, cell)})

    return run


def row_of(rows: Sequence[Row], **names: object) -> Row:
    """Return the first row with these names and values."""
    return next(row for row in rows if all(row[name] == value for name, value in names.items()))
