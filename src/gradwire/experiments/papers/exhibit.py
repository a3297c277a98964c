"""An exhibit: a table or figure of a paper, the run of its counterpart, and what is claimed of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic

from gradwire.errors import JobError
from gradwire.experiments.claim import Basis, Claim
from gradwire.experiments.claims_table import claims_table
from gradwire.experiments.experiment import Cell, Experiment, Options, Reporter, Row
from gradwire.experiments.papers.origins import Origins, Source
from gradwire.experiments.record import as_json
from gradwire.page.made_with import plain
from gradwire.tables import Table

DATA = "data"
"""The name of a cell's images."""
DIGITS = "digits"
"""scikit-learn's, which are at hand without ``$GRADWIRE_DATA``."""
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

    def judge(self, rows: Sequence[Row]) -> list[Claim]:
        """Return the claims for all rows. What was fitted to a published figure isn't compared with it.

        A measured claim becomes calibrated if a number of the exhibit was set from its figure or its table.
        Where all images were scikit-learn's small digits, each claim says so.
        """
        fitted = [each.where for each in self.origins.values() if each.source is Source.CALIBRATED]
        claims = [_unless_fitted(claim, fitted) for claim in self.claims(rows)]
        is_small = {row[DATA] for row in rows if DATA in row} == {DIGITS}
        return [_on_digits(claim) if is_small else claim for claim in claims]

    def shortened(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the recorded options that differ from those of ``--full``, each with both values."""
        full = as_json(asdict(self.full))  # type: ignore[call-overload]
        return {
            name: f"{plain(options[name])} instead of {plain(value)}"
            for name, value in full.items()
            if name in options and options[name] != value
        }

    def has_options(self, options: Mapping[str, Any]) -> bool:
        """Return whether recorded options are those of ``--quick`` or of ``--full``, of this version."""
        return self._recorded_as(options) is not None

    def check_rows(self, options: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Raise ``JobError`` unless the rows of a finished record are those of all cells of its options.

        All words by which cells differ must be there, and as many different rows as cells: a seed or a line
        that is missing has no word. Images and what depends on them aren't compared, because a record may be
        judged where there are others.
        """
        own = self._recorded_as(options)
        if own is None:
            return
        cells, found = self.experiment.cells(own), _words(rows)
        missing = [f"{name} {value}" for name, value in _words(cells) if (name, value) not in found]
        lack = f"some with {missing[0]}, got none" if missing else _other_number(cells, rows)
        if lack:
            raise JobError(
                f"the record of {self.name} lacks rows: expected {lack}; measure it anew with --overwrite"
            )

    def _recorded_as(self, recorded: Mapping[str, Any]) -> Options | None:
        """Return the options of ``--quick`` or ``--full`` that a record has; None for others."""
        both = (self.quick, self.full)
        return next((own for own in both if as_json(asdict(own)) == recorded), None)  # type: ignore[call-overload]


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


def _unless_fitted(claim: Claim, fitted: Sequence[str]) -> Claim:
    if claim.basis is not Basis.MEASURED or claim.published is None:
        return claim
    whole = re.compile(rf"\b{re.escape(claim.published.place)}\b")  # not "table II" in "table III"
    is_fitted = any(whole.search(where.split(",")[0]) for where in fitted)
    return replace(claim, basis=Basis.CALIBRATED) if is_fitted else claim


def _on_digits(claim: Claim) -> Claim:
    if f"on {DIGITS}" in claim.title:
        return claim
    return replace(claim, system=", ".join(filter(None, (claim.system, f"on {DIGITS}"))))


def _words(cells: Sequence[Cell]) -> dict[tuple[str, str], None]:
    return {
        (name, value): None
        for cell in cells
        for name, value in cell.items()
        if isinstance(value, str) and name != DATA
    }


def _other_number(cells: Sequence[Cell], rows: Sequence[Row]) -> str:
    """Return the numbers of cells and of rows, in words, if they differ; else an empty text."""
    names = {name for cell in cells for name in cell}
    different = {repr(sorted((name, row[name]) for name in names & row.keys())) for row in rows}
    if len(rows) == len(different) == len(cells):
        return ""
    return f"{len(cells)} for as many cells, got {len(rows)}, of which {len(different)} are different"


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
