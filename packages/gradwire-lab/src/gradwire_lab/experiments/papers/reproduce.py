"""Run exhibits one after another, and judge their records."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.errors import GradwireError
from gradwire.line_rate.display import about
from gradwire.tables import Column, Table
from gradwire_lab.experiments.claim import Basis, Claim, Verdict, shown
from gradwire_lab.experiments.experiment import Row, lossy_warnings, warnings_in_words
from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.record import RECORD, REMEDY, RecordFile, others_in_words, perform, read_fields

LONGEST = 60
"""The length to which a progress line shortens the description of a measured cell."""
OTHER_OPTIONS = (
    "expected the options of --quick or --full in the record, got other options; repeat the same gradwire "
    "reproduce with --overwrite."
)


@dataclass(frozen=True)
class Judged:
    """An exhibit with its claims, or the reason why this machine couldn't run it.

    Older records lack seconds. ``shortened`` has the options that differ from ``--full``, with both values.
    """

    exhibit: Exhibit[Any]
    claims: Sequence[Claim] = ()
    failure: str = ""
    expected_s: float | None = None
    measured_s: float | None = None
    shortened: Mapping[str, str] = field(default_factory=dict)
    lossy: Sequence[str] = ()
    others: str = ""


def judge(exhibit: Exhibit[Any], fields: Mapping[str, Any], rows: Sequence[Row]) -> Judged:
    """Judge an exhibit from the rows and fields of its finished record.

    Other options than ``--quick`` and ``--full`` count as not run: the required rows are unknown. Raises
    ``JobError`` for missing rows, and any error of the exhibit's claims for rows with missing fields.
    """
    if not exhibit.has_options(fields["options"]):
        return Judged(exhibit, failure=OTHER_OPTIONS)
    exhibit.check_rows(fields["options"], rows)
    return Judged(
        exhibit,
        tuple(exhibit.judge(rows)),
        expected_s=fields.get("expected_s"),
        measured_s=fields.get("measured_s") or None,
        shortened=exhibit.shortened(fields["options"]),
        lossy=lossy_warnings(rows),
        others=others_in_words(rows),
    )


def reproduce(
    exhibits: Sequence[Exhibit[Any]],
    out: Path,
    say: Callable[[str], None],
    *,
    full: bool = False,
    overwrite: bool = False,
    across_commits: bool = False,
) -> list[Judged]:
    """Run exhibits, and return their claims in the same order.

    Each exhibit has a folder of its name in ``out``. Cells in a finished record aren't measured again, and an
    unfinished record is continued. If an exhibit can't be run, the others still are. ``say`` receives lines
    of progress. Raises ``JobError`` before any measurement if a folder isn't writable or holds other content,
    such as a record of a different machine, version, or commit (unless ``across_commits``), or with different
    options.
    """
    for each in exhibits:
        options, folder = each.options(full), out / each.name
        RecordFile(
            each.experiment, options, folder, overwrite, keeps_finished=True, across_commits=across_commits
        )
    clock = _Clock([each.seconds[full] for each in exhibits])
    judged = []
    for number, each in enumerate(exhibits):
        how = {"overwrite": overwrite, "across_commits": across_commits}
        judged.append(_perform(each, number, out, say, clock, full=full, **how))
        clock.done(number)
        rest = clock.rest_s(number + 1, 0.0)
        left = f"; {about(rest)} left" if number + 1 < len(exhibits) else ""
        failed = f" failed: {judged[-1].failure}" if judged[-1].failure else ""
        say(f"{number + 1}/{len(exhibits)} {each.name}{failed or ' done'}{left}")
    return judged


def _perform(
    each: Exhibit[Any],
    number: int,
    out: Path,
    say: Callable[[str], None],
    clock: _Clock,
    full: bool,
    **how: Any,
) -> Judged:
    options, folder = each.options(full), out / each.name
    cells = len(each.experiment.cells(options))

    def advance(done: int, text: str) -> None:
        rest = clock.rest_s(number, done / max(cells, 1))
        what = textwrap.shorten(text, LONGEST, placeholder=" ...")
        say(f"  {each.name} {done}/{cells} {what}; {about(rest)} left")

    how |= {"quiet": True, "keeps_finished": True, "expected_s": each.seconds[full], "advance": advance}
    try:
        rows = perform(each.experiment, options, folder, **how)
        return judge(each, read_fields(folder / RECORD, each.experiment, REMEDY), rows)
    except GradwireError as error:
        return Judged(each, failure=str(error))


def seconds_in_words(judged: Sequence[Judged]) -> str:
    """Return a sentence with the measured and the expected duration, or "" if no record has both."""
    known = [
        (each.expected_s, each.measured_s)
        for each in judged
        if each.expected_s is not None and each.measured_s is not None
    ]
    if not known:
        return ""
    expected_s, measured_s = (sum(each) for each in zip(*known, strict=True))
    of = "" if len(known) == len(judged) else f" of {len(known)} of {len(judged)} tables and figures"
    return f"Measuring{of} took {about(measured_s)}; the budget is {about(expected_s)}."


class _Clock:
    """A clock that estimates the remaining time from the expected seconds and the pace so far."""

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._expected_s = expected_s
        self._took_s, self._of_s, self._since = 0.0, 0.0, time.monotonic()

    def done(self, number: int) -> None:
        """Update the pace after exhibit ``number``, unless its record was already complete."""
        took_s = time.monotonic() - self._since
        self._since += took_s
        if took_s > 0.05 * self._expected_s[number]:
            self._took_s += took_s
            self._of_s += self._expected_s[number]

    def rest_s(self, number: int, share: float) -> float:
        """Return the estimated remaining seconds after a share of exhibit ``number``."""
        pace = self._took_s / self._of_s if self._of_s > 0 else 1.0
        left = self._expected_s[number:]
        return pace * (sum(left) - share * left[0]) if left else 0.0


# The tables: measured and published figures, with the verdict first.

NOT_RUN = str(Verdict.NOT_RUN)
VERDICTS = (*map(str, Verdict),)
MEASURED = "measured here, compared with the paper"
UNPUBLISHED = "measured here, compared with something else"
BASES = {
    "modelled": (Basis.MODELLED,),
    "not evidence: calibrated, or arithmetic": (Basis.CALIBRATED, Basis.ARITHMETIC),
}
"""The origins of figures that weren't measured, in the order of the page."""
COLUMNS = (
    *map(Column.of_text, ("verdict", "where", "claim")),
    *map(Column, ("published", "here")),
    Column.of_text("rule"),
)


def report(judged: Sequence[Judged], titles: Mapping[str, str]) -> list[str | Table]:
    """Return the count of verdicts, and a table per paper with its reasons and scalings."""
    parts: list[str | Table] = [in_words(judged), ""]
    for paper, title in titles.items():
        own = [each for each in judged if each.exhibit.paper == paper]
        if own:
            parts += [f"{paper}: {title}. {in_words(own)}", ""]
            lines = [line for each in own for line in _lines(each)]
            lines.sort(key=lambda line: line[0] != Verdict.DID_NOT_LEARN)
            parts += [Table(COLUMNS, lines), ""]
            paragraphs = dict.fromkeys(note for each in own for note in notes(each))
            parts += [part for note in paragraphs for part in (note, "")]
    return parts[:-1] if parts[-1] == "" else parts


def in_words(judged: Sequence[Judged]) -> str:
    """Return the count of each verdict as text, with figures that weren't measured in parentheses.

    ``1 did not learn, 3 reproduced (not measured: 2 modelled, 1 arithmetic)``
    """
    measured, others = Counter[str](), Counter[str]()
    for each in judged:
        measured[NOT_RUN] += bool(each.failure)
        for claim in each.claims:
            own = claim.basis is Basis.MEASURED or claim.verdict == claim.basis.value
            name = str(claim.verdict) if own else f"{claim.verdict} ({claim.basis})"
            (measured if claim.basis is Basis.MEASURED else others)[name] += 1
    apart = f" (not measured: {_listed(others)})" if others else ""
    return f"{_listed(measured) or 'nothing measured'}{apart}"


def by_basis(judged: Sequence[Judged]) -> list[tuple[str, int, str]]:
    """Return the number and verdicts of figures by origin: measured (published first), modelled, not run."""
    claims = [claim for each in judged for claim in each.claims]
    groups: dict[str, Counter[str]] = {name: Counter() for name in (MEASURED, UNPUBLISHED, *BASES, NOT_RUN)}
    for claim in claims:
        groups[basis_of(claim)][str(claim.verdict)] += 1
    idle = groups.pop(NOT_RUN).total() + sum(bool(each.failure) for each in judged)
    lines = [(name, own.total(), _listed(own)) for name, own in groups.items()]
    return [line for line in (*lines, (NOT_RUN, idle, "reasons below")) if line[1]]


def basis_of(claim: Claim) -> str:
    """Return the origin of a claim's figures as shown in reports, or ``NOT_RUN`` if there are none."""
    if claim.not_run:
        return NOT_RUN
    if claim.basis is Basis.MEASURED:
        return UNPUBLISHED if claim.published is None else MEASURED
    return next(name for name, kinds in BASES.items() if claim.basis in kinds)


def _listed(found: Counter[str]) -> str:
    names = sorted(found, key=lambda name: (VERDICTS.index(name.partition(" (")[0]), name))
    return ", ".join(f"{found[name]} {name}" for name in names if found[name])


def failures(judged: Sequence[Judged]) -> list[str]:
    """Return the titles of claims about training runs that didn't learn."""
    return [
        f"{each.exhibit.name}, {claim.title}"
        for each in judged
        for claim in each.claims
        if claim.verdict is Verdict.DID_NOT_LEARN
    ]


def counts(judged: Sequence[Judged]) -> dict[str, int]:
    """Return the count of each verdict, in the order of ``VERDICTS``."""
    found = Counter[str](claim.verdict for each in judged for claim in each.claims)
    found[NOT_RUN] += sum(bool(each.failure) for each in judged)
    return {name: found[name] for name in VERDICTS}


def _lines(each: Judged) -> Iterator[tuple[str, ...]]:
    if each.failure:
        yield NOT_RUN, each.exhibit.place, each.exhibit.experiment.question, "", "", ""
    for claim in each.claims:
        place = each.exhibit.place if claim.published is None else claim.published.place
        published = "" if claim.published is None else claim.published.in_words(claim.unit)
        title, rule = title_in_words(each, claim), claim.wanted.in_words(claim.unit)
        yield claim.verdict, place, title, published, figures_in_words(claim), rule


def title_in_words(each: Judged, claim: Claim) -> str:
    """Return a claim's title, with the options that are too small for a final verdict in a short run."""
    return f"{claim.title} (short: {', '.join(each.shortened)})" if each.shortened else claim.title


def figures_in_words(claim: Claim) -> str:
    """Return the mean, or the range of the figures if each figure must meet the rule."""
    known = [each for each in claim.figures.values() if each is not None]
    if not claim.of_each or len(known) < 2 or len(known) < len(claim.figures):
        return shown(claim.mean, claim.unit)
    return f"{shown(min(known), claim.unit)}\n{shown(max(known), claim.unit)}"


def notes(each: Judged) -> list[str]:
    """Return reasons, errata, and scaling as paragraphs."""
    found: list[str] = []
    if each.failure:
        found.append(f"{each.exhibit.place} was not run: {each.failure}")
    for claim in each.claims:
        if claim.explained:
            found.append(claim.explained)
        if claim.rests_on:
            found.append(f"{claim.title} rests on: {'; '.join(own.in_words() for own in claim.rests_on)}.")
        if claim.published is not None and claim.published.erratum:
            found.append(f"Erratum of {claim.published.place}: {claim.published.erratum}")
    found.append(f"{each.exhibit.place}, here: {each.exhibit.scaling}")
    if each.shortened:
        listed = "; ".join(f"{name} {values}" for name, values in each.shortened.items())
        found.append(f"{each.exhibit.place} is too short for a final verdict: {listed}.")
    if each.lossy:
        found.append(f"{each.exhibit.place}: {warnings_in_words(each.lossy)}")
    if each.others:
        found.append(f"{each.exhibit.place}: {each.others}")
    return [*dict.fromkeys(found)]
