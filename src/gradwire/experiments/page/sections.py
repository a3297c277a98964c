"""The parts of the page: the summary, and a section for each exhibit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.experiments.claim import Claim, shown
from gradwire.experiments.page.plot import plot
from gradwire.experiments.page.recorded import Recorded
from gradwire.experiments.papers.report import NOT_RUN, VERDICTS, counts, in_words, notes
from gradwire.page.made_with import options_in_words
from gradwire.page.markup import Markup, element, together
from gradwire.page.picture import figure
from gradwire.page.tables import Cell, Mark, Number, marked, table

COLUMNS = ("claim", "verdict", "where", "published", "here", "rule")
LEGEND = (
    "Dot: here, a cross if the rule isn't kept. Small dots: the figures behind the mean. Diamond: published. "
    "Band: what the rule allows."
)
MARKS = {
    mark.word: mark
    for mark in (
        Mark("reproduced", "\u2713", "good"),
        Mark("modelled", "\u223f", "near"),
        Mark("explained", "\u2248", "caution"),
        Mark("not reproduced", "\u2717", "bad"),
        Mark("not run", "\u2013", "none"),
    )
}
"""How verdicts look."""


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
    parts = [
        element("h3", f"{exhibit.paper}, {exhibit.place}", id=exhibit.name),
        element("p", exhibit.experiment.question),
    ]
    if each.judged.failure:
        parts.append(element("p", marked(MARKS[NOT_RUN])))
    if claims:
        parts.append(table(caption, COLUMNS, [_claim(claim, exhibit.place) for claim in claims]))
        picture = plot(claims, exhibit.name, f"{exhibit.paper}, {exhibit.place}. {LEGEND}")
        parts += [] if picture is None else [figure(picture)]
    parts += [element("p", note) for note in notes(each.judged)]
    parts.append(element("p", options_in_words(each.fields["options"]), class_="note"))
    return element("section", together(*parts, between="\n"), aria_labelledby=exhibit.name)


def _claim(claim: Claim, place: str) -> list[Cell]:
    published = claim.published
    value = None if published is None else published.value
    return [
        claim.title,
        marked(MARKS[claim.verdict]),
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
