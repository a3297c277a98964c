"""The tables: what was measured beside what was published, with the verdict first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gradwire.experiments.claim import Basis, Claim, Verdict, shown
from gradwire.experiments.heard import warnings_in_words
from gradwire.experiments.papers.reproduce import Judged
from gradwire.tables import Column, Table

NOT_RUN = str(Verdict.NOT_RUN)
VERDICTS = (*map(str, Verdict),)
"""In the order of reports."""
MEASURED = "measured here, beside what is published"
UNPUBLISHED = "measured here, beside something else than the paper"
BASES = {
    "modelled": (Basis.MODELLED,),
    "not evidence: calibrated, or arithmetic": (Basis.CALIBRATED, Basis.ARITHMETIC),
}
"""Where figures come from that weren't measured, in the order of the page."""
COLUMNS = (
    Column.of_text("verdict"),
    Column.of_text("where"),
    Column.of_text("claim"),
    Column("published"),
    Column("here"),
    Column.of_text("rule"),
)


def report(judged: Sequence[Judged], titles: Mapping[str, str]) -> list[str | Table]:
    """Return the count of verdicts, and a table for each paper with its reasons and scalings."""
    parts: list[str | Table] = [in_words(judged), ""]
    for paper, title in titles.items():
        own = [each for each in judged if each.exhibit.paper == paper]
        if own:
            parts += [f"{paper}: {title}. {in_words(own)}", ""]
            lines = sorted((line for each in own for line in _lines(each)), key=_order)
            parts += [Table(COLUMNS, lines), ""]
            paragraphs = dict.fromkeys(note for each in own for note in notes(each))
            parts += [part for note in paragraphs for part in (note, "")]
    return parts[:-1] if parts[-1] == "" else parts


def in_words(judged: Sequence[Judged]) -> str:
    """Return how often there is each verdict, what wasn't measured apart.

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
    """Return where figures come from, how many there are of each, and their verdicts.

    What was measured comes first, without a published figure after the others, and what wasn't run last.
    """
    claims = [claim for each in judged for claim in each.claims]
    groups: dict[str, Counter[str]] = {name: Counter() for name in (MEASURED, UNPUBLISHED, *BASES, NOT_RUN)}
    for claim in claims:
        groups[basis_of(claim)][str(claim.verdict)] += 1
    idle = groups.pop(NOT_RUN).total() + sum(bool(each.failure) for each in judged)
    lines = [(name, own.total(), _listed(own)) for name, own in groups.items()]
    return [line for line in (*lines, (NOT_RUN, idle, "reasons below")) if line[1]]


def basis_of(claim: Claim) -> str:
    """Return where a claim's figures come from, as a report says it; ``NOT_RUN`` without any."""
    if claim.not_run:
        return NOT_RUN
    if claim.basis is Basis.MEASURED:
        return UNPUBLISHED if claim.published is None else MEASURED
    return next(name for name, kinds in BASES.items() if claim.basis in kinds)


def _listed(found: Counter[str]) -> str:
    names = sorted(found, key=lambda name: (VERDICTS.index(name.partition(" (")[0]), name))
    return ", ".join(f"{found[name]} {name}" for name in names if found[name])


def failures(judged: Sequence[Judged]) -> list[str]:
    """Return the titles of claims that rest on trainings that didn't learn."""
    return [
        f"{each.exhibit.name}, {claim.title}"
        for each in judged
        for claim in each.claims
        if claim.verdict is Verdict.DID_NOT_LEARN
    ]


def counts(judged: Sequence[Judged]) -> dict[str, int]:
    """Return how often there is each verdict, in the order of ``VERDICTS``."""
    found = Counter[str](claim.verdict for each in judged for claim in each.claims)
    found[NOT_RUN] += sum(bool(each.failure) for each in judged)
    return {name: found[name] for name in VERDICTS}


def _lines(each: Judged) -> Iterator[tuple[str, ...]]:
    if each.failure:
        yield NOT_RUN, each.exhibit.place, each.exhibit.experiment.question, "", "", ""
    for claim in each.claims:
        place = each.exhibit.place if claim.published is None else claim.published.place
        yield (
            claim.verdict,
            place,
            title_in_words(each, claim),
            "" if claim.published is None else claim.published.in_words(claim.unit),
            figures_in_words(claim),
            claim.wanted.in_words(claim.unit),
        )


def title_in_words(each: Judged, claim: Claim) -> str:
    """Return a claim's title, in a short run with the options that are too short for a final verdict."""
    return f"{claim.title} (short: {', '.join(each.shortened)})" if each.shortened else claim.title


def _order(line: Sequence[str]) -> int:
    """Return 0 for a line of a claim that did not learn, which comes first, and 1 for all others."""
    return int(line[0] != Verdict.DID_NOT_LEARN)


def figures_in_words(claim: Claim) -> str:
    """Return the mean, or the range that each figure of several has to keep."""
    known = [each for each in claim.figures.values() if each is not None]
    if not claim.of_each or len(known) < 2 or len(known) < len(claim.figures):
        return shown(claim.mean, claim.unit)
    return f"{shown(min(known), claim.unit)}\n{shown(max(known), claim.unit)}"


def notes(each: Judged) -> list[str]:
    """Return reasons, errata, and the scaling, each a paragraph."""
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
