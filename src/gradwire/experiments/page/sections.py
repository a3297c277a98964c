"""The parts of the page: the summary, a section for each exhibit, and what the records were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.experiments.claim import Claim, shown
from gradwire.experiments.page.markup import Markup, element, together
from gradwire.experiments.page.plot import can_draw, plot
from gradwire.experiments.page.recorded import Recorded
from gradwire.experiments.page.tables import Cell, Number, scrolled, table, verdict
from gradwire.experiments.papers.report import NOT_RUN, VERDICTS, counts, in_words, notes
from gradwire.version import how_to_install

COLUMNS = ("claim", "verdict", "where", "published", "here", "rule")
LEGEND = (
    "Dot: here, a cross if the rule isn't kept. Small dots: the figures behind the mean. Diamond: published. "
    "Band: what the rule allows."
)
MADE_WITH = ("machine", "versions", "commit")
"""Fields of a record that say where it is from."""


def summary(recorded: Sequence[Recorded], titles: Mapping[str, str], missing: Sequence[str]) -> Markup:
    """Return the counts of all verdicts, by paper and by exhibit."""
    papers = [paper for paper in titles if any(each.judged.exhibit.paper == paper for each in recorded)]
    by_paper: list[Sequence[Cell]] = [
        (
            element("a", f"{paper}: {titles[paper]}", href=f"#{paper}"),
            *_counts([each for each in recorded if each.judged.exhibit.paper == paper]),
        )
        for paper in papers
    ]
    by_exhibit: list[Sequence[Cell]] = [
        (
            element("a", each.judged.exhibit.name, href=f"#{each.judged.exhibit.name}"),
            each.judged.exhibit.experiment.question,
            *_counts([each]),
        )
        for each in recorded
    ]
    parts = [
        element("h2", "Summary", id="summary"),
        element("p", in_words([each.judged for each in recorded]), class_="answer"),
        table("Verdicts by paper", ("paper", *VERDICTS), by_paper, ("all", *_counts(recorded))),
        table("Verdicts by table or figure", ("name", "question", *VERDICTS), by_exhibit),
    ]
    if missing:
        parts.append(element("p", f"Without a record here: {', '.join(missing)}.", class_="note"))
    return together(*parts, between="\n")


def _counts(recorded: Sequence[Recorded]) -> list[Number]:
    found = counts([each.judged for each in recorded])
    return [Number(str(count), count) for count in found.values()]


def exhibit_section(each: Recorded) -> Markup:
    """Return an exhibit's claims as a table and a plot, with reasons, errata, scaling, and options."""
    exhibit, claims = each.judged.exhibit, each.judged.claims
    caption = f"{exhibit.paper}, {exhibit.place}: published and here"
    parts = [element("h3", exhibit.place, id=exhibit.name), element("p", exhibit.experiment.question)]
    if each.judged.failure:
        parts.append(element("p", verdict(NOT_RUN)))
    if claims:
        parts.append(table(caption, COLUMNS, [_claim(claim, exhibit.place) for claim in claims]))
        parts += _figure(claims, exhibit.name, f"{exhibit.paper}, {exhibit.place}. {LEGEND}")
    parts += [element("p", note) for note in notes(each.judged)]
    options = "; ".join(f"{name} {_plain(value)}" for name, value in each.fields["options"].items())
    parts.append(element("p", f"Options: {options or 'none'}.", class_="note"))
    return element("section", together(*parts, between="\n"), aria_labelledby=exhibit.name)


def _claim(claim: Claim, place: str) -> list[Cell]:
    published = claim.published
    value = None if published is None else published.value
    return [
        claim.title,
        verdict(claim.verdict),
        place if published is None else published.place,
        Number(
            "" if published is None else published.in_words(claim.unit),
            min(value) if isinstance(value, tuple) else value,
        ),
        Number(_here(claim), claim.mean),
        _rule(claim),
    ]


def _here(claim: Claim) -> Markup:
    """Return the mean, and each figure of several with its name."""
    mean = together(shown(claim.mean, claim.unit))
    if len(claim.figures) < 2:
        return mean
    each = [element("li", f"{name}: {shown(value, claim.unit)}") for name, value in claim.figures.items()]
    return together(mean, element("ul", *each, class_="figures"))


def _rule(claim: Claim) -> str:
    rule = f"{'each ' if claim.of_each else ''}{claim.wanted.in_words(claim.unit)}"
    if claim.otherwise is None:
        return rule
    return f"{rule}; explained: {claim.otherwise.bound.in_words(claim.unit)}"


def _figure(claims: Sequence[Claim], name: str, caption: str) -> list[Markup]:
    drawn = plot(claims, name) if can_draw() else None
    if drawn is None:
        return []
    box = scrolled(f"Plot of {name}", drawn)
    return [element("figure", box, element("figcaption", caption, id=f"{name}-caption"))]


def made_with(recorded: Sequence[Recorded]) -> Markup:
    """Return a table for each machine, versions, and commit, with the exhibits that were measured there."""
    groups: dict[str, list[Recorded]] = {}
    for each in recorded:
        groups.setdefault(
            json.dumps([each.fields.get(name) for name in MADE_WITH], sort_keys=True), []
        ).append(each)
    parts = [element("h2", "Machine and versions", id="machine")]
    for group in groups.values():
        names = ", ".join(each.judged.exhibit.name for each in group)
        parts.append(table(f"Records of {names}", ("what", "value"), _provenance(group[0].fields)))
    if not can_draw():
        parts.append(
            element("p", f"For plots, install matplotlib: {how_to_install('train')}.", class_="note")
        )
    return together(*parts, between="\n")


def _provenance(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values; what has names of its own takes a line for each."""
    lines: list[tuple[str, str]] = []
    for name in MADE_WITH:
        value = fields.get(name)
        lines += [
            (key, _plain(each)) for key, each in (value if isinstance(value, dict) else {name: value}).items()
        ]
    return lines


def _plain(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
