"""An exhibit: a table or figure of a paper, the run of its counterpart, and its claims."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic

from gradwire.deferred import torch
from gradwire.errors import JobError
from gradwire.machine import cores
from gradwire.page import plain
from gradwire.tables import Table
from gradwire_lab.experiments.claim import Basis, Claim, claims_table
from gradwire_lab.experiments.experiment import (
    Cell,
    Experiment,
    HeardWarnings,
    Options,
    Reporter,
    Row,
    in_words,
    select,
)
from gradwire_lab.experiments.record import as_json
from gradwire_lab.text_enum import TextEnum

if TYPE_CHECKING:
    from gradwire.launch.local import RankContext

# The origin of each number of an exhibit: its paper, a calibration, or a choice with a reason.


class OriginKind(TextEnum):
    """The kind of origin of a number: a paper, a calibration, or a choice."""

    PAPER = "published"
    CALIBRATED = "calibrated on"
    CHOSEN = "chosen"


@dataclass(frozen=True)
class Origin:
    """The origin of an option or constant: a place in the paper, or the reason for a choice."""

    source: OriginKind
    where: str

    def __str__(self) -> str:
        return f"{self.source}{',' if self.source is OriginKind.PAPER else ''} {self.where}"


Origins = Mapping[str, Origin]
"""The origins of options or constants, by their names."""


def paper(place: str) -> Origin:
    """Return the origin of a number printed in a paper."""
    return Origin(OriginKind.PAPER, place)


def calibrated(place: str) -> Origin:
    """Return the origin of a number set so that a published figure is met."""
    return Origin(OriginKind.CALIBRATED, place)


def chosen(reason: str) -> Origin:
    """Return the origin of a number that neither a paper nor a measured figure determines."""
    return Origin(OriginKind.CHOSEN, reason)


RUN_TIME = chosen("for run time")
TWO_CORES = chosen("so that ranks that share two cores keep up with their links")
FLOATING = chosen("for rounding of floating point")


def by_name(grouped: Origins) -> Origins:
    """Return the origin of each name, from origins of several names, which spaces separate.

    Raises ``JobError`` for a repeated name.
    """
    found: dict[str, Origin] = {}
    for names, origin in grouped.items():
        for name in names.split():
            if name in found:
                raise JobError(
                    f"expected one origin of {name}, got {found[name]!s} and {origin!s}; omit one of them"
                )
            found[name] = origin
    return MappingProxyType(found)


DATA = "data"
"""The field with the name of the images that a cell uses."""
DIGITS = "digits"
"""scikit-learn's digits, which are available without ``$GRADWIRE_DATA``."""
NO_ORIGINS: Origins = MappingProxyType({})
Run = Callable[[Options, Sequence[Cell], Sequence[Row], Reporter], None]
Judge = Callable[[Sequence[Row]], Sequence[Claim]]


@dataclass(frozen=True)
class Exhibit(Generic[Options]):
    """A table or figure of a paper, and the experiment that measures or models its counterpart here.

    ``quick`` and ``full`` are the options for a run of minutes and of hours, which take ``seconds`` on two
    cores. ``claims`` are computed from the rows alone. ``scaling`` says how the sizes here differ from the
    paper's, and ``origins`` where each option and each number of the module comes from.
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
        """The exhibit's name on the command line, and the name of the folder of its record."""
        return _name(self.paper, self.place)

    def options(self, full: bool) -> Options:
        """Return the options of ``--full``, or else of ``--quick``."""
        return self.full if full else self.quick

    def judge(self, rows: Sequence[Row]) -> list[Claim]:
        """Return the claims for all rows.

        A measured claim becomes calibrated if a number of the exhibit was set from its figure or table. If
        all images were scikit-learn's small digits, each claim's system names the digits.
        """
        fitted = [each.where for each in self.origins.values() if each.source is OriginKind.CALIBRATED]
        claims = [_unless_fitted(claim, fitted) for claim in self.claims(rows)]
        on = f"on {DIGITS}"
        if {row[DATA] for row in rows if DATA in row} != {DIGITS}:
            return claims
        return [
            each if on in each.title else replace(each, system=f"{each.system}, {on}" if each.system else on)
            for each in claims
        ]

    def shortened(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the recorded options that differ from ``--full``, each with the two values."""
        full = as_json(asdict(self.full))  # type: ignore[call-overload]
        return {
            name: f"{plain(options[name])} instead of {plain(value)}"
            for name, value in full.items()
            if name in options and options[name] != value
        }

    def has_options(self, options: Mapping[str, Any]) -> bool:
        """Return whether recorded options equal this version's ``--quick`` or ``--full``."""
        return self._recorded_as(options) is not None

    def check_rows(self, options: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Raise ``JobError`` unless the rows of a finished record cover all cells of its options.

        All text values except the names of images must be present, in as many distinct rows as cells. A
        record may be judged on a machine with other images.
        """
        own = self._recorded_as(options)
        if own is None:
            return
        cells, found = self.experiment.cells(own), _words(rows)
        missing = [f"{name} {value}" for name, value in _words(cells) if (name, value) not in found]
        lack = f"some with {missing[0]}, got none" if missing else _other_number(cells, rows)
        if lack:
            raise JobError(
                f"the record of {self.name} lacks rows: expected {lack}; measure again with --overwrite"
            )

    def _recorded_as(self, recorded: Mapping[str, Any]) -> Options | None:
        """Return the options of a record: ``--quick``, ``--full``, or None for other options."""
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
    """Return an exhibit with its own experiment, whose table is the table of claims.

    ``origins`` has the names of options and numbers, separated by spaces, with their common origin.
    """

    def table(rows: Sequence[Row]) -> list[str | Table]:
        return [claims_table(claims(rows))]

    name, options = _name(paper, place), type(quick)
    experiment = Experiment(name, question, options, cells, run, table, version=version)
    return Exhibit(paper, place, experiment, quick, full, claims, scaling, seconds, by_name(origins))


def _unless_fitted(claim: Claim, fitted: Sequence[str]) -> Claim:
    if claim.basis is not Basis.MEASURED or claim.published is None:
        return claim
    whole = re.compile(rf"\b{re.escape(claim.published.place)}\b")  # "table II" must not match "table III"
    is_fitted = any(whole.search(where.split(",")[0]) for where in fitted)
    return replace(claim, basis=Basis.CALIBRATED) if is_fitted else claim


def _words(cells: Sequence[Cell]) -> dict[tuple[str, str], None]:
    return {
        (name, value): None
        for cell in cells
        for name, value in cell.items()
        if isinstance(value, str) and name != DATA
    }


def _other_number(cells: Sequence[Cell], rows: Sequence[Row]) -> str:
    """Return a description of the numbers of cells and rows if they differ, else an empty string."""
    names = {name for cell in cells for name in cell}
    different = {repr(sorted((name, row[name]) for name in names & row.keys())) for row in rows}
    if len(rows) == len(different) == len(cells):
        return ""
    return f"{len(cells)} different rows, got {len(rows)} rows, {len(different)} of them different"


def _name(paper: str, place: str) -> str:
    return re.sub("[^a-z0-9]+", "-", f"{paper} {place}".lower()).strip("-")


def each(measure: Callable[[Options, Cell], Mapping[str, Any]]) -> Run[Options]:
    """Return a run that measures cells one after another. ``measure`` returns the figures of one cell."""

    def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
        for cell in cells:
            report({**cell, **measure(options, cell)})

    return run


def row_of(rows: Sequence[Row], **names: object) -> Row:
    """Return the first row that has the fields in ``names``. Raises ``LookupError`` without such a row."""
    found = select(rows, **names)
    if not found:
        raise LookupError(f"expected a row with {in_words(names, ())}, got none")
    return found[0]


# Cells without times, measured side by side: one process and one thread of torch per core.
#
# A cell's row has the same bits in any order and process, because one thread fixes the order of summation.

TIMEOUT_S = 60.0
"""The longest wait for a reply from the store that distributes groups among processes."""
Measure = Callable[[Options, Cell], Mapping[str, Any]]
MeasureGroup = Callable[[Options, Sequence[Cell]], Iterable[Row]]


def side_by_side(measure: Measure[Options]) -> Run[Options]:
    """Return a run that measures a cell per core at once; ``measure``, a module's function, times nothing."""
    return groups_side_by_side(partial(_row, measure), ())


def groups_side_by_side(measure: MeasureGroup[Options], alike: Sequence[str]) -> Run[Options]:
    """Return a run that measures groups of cells side by side, such as cells that share a training run.

    ``measure``, a module's function, returns the rows of one group. The cells of a group have equal values of
    ``alike``; if ``alike`` is empty, each cell is a group.
    """

    def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
        from gradwire.launch.local import Task, run_local

        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(repr([cell[name] for name in alike or cell]), []).append(cell)
        work = _Work(measure, options, (*groups.values(),))
        task: Task[_Work[Options], Row] = Task(
            work=_take_groups,
            options=work,
            world=min(cores(), len(groups)),
            timeout_s=TIMEOUT_S,
            preload=("gradwire.sync.method", "torch._dynamo"),
            title="process {}".format,
            when=lambda row: "at its first cell" if row is None else f"after {in_words(row, ())}",
        )
        run_local(task, report)

    return run


@dataclass(frozen=True)
class _Work(Generic[Options]):
    """The groups of cells that the processes measure, and how."""

    measure: MeasureGroup[Options]
    options: Options
    groups: tuple[list[Cell], ...]


def _row(measure: Measure[Options], options: Options, cells: Sequence[Cell]) -> list[Row]:
    return [{**cell, **measure(options, cell)} for cell in cells]


def _take_groups(context: RankContext[Row], work: _Work[Any]) -> None:
    """Measure groups that no other process has taken, until no group is left."""
    torch.set_num_threads(1)
    store = context.join_store()
    with HeardWarnings() as heard:
        while (number := store.add("groups taken", 1) - 1) < len(work.groups):
            group = work.groups[number]
            context.doing = f"measuring {in_words(group[0], ())}"
            for row in work.measure(work.options, group):
                context.report(heard.joined(row))
