"""The parts of the page: the summary, and a section for each exhibit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.experiments.claim import Claim, Verdict, shown
from gradwire.experiments.page.plot import plot
from gradwire.experiments.page.recorded import Recorded
from gradwire.experiments.papers.report import NOT_RUN, by_basis, counts, notes, title_in_words
from gradwire.experiments.papers.reproduce import Judged, seconds_in_words
from gradwire.page.made_with import options_in_words
from gradwire.page.markup import Markup, element, together
from gradwire.page.picture import figure
from gradwire.page.tables import Cell, Mark, Number, marked, table
from gradwire.units import counted

COLUMNS = ("claim", "verdict", "where", "published", "here", "rule")
LEGEND = (
    "Dot: here, a cross if the rule isn't kept. Small dots: the figures behind the mean. Diamond: published. "
    "Band: what the rule allows."
)
MARKS = {
    mark.word: mark
    for mark in (
        Mark("did not learn", "\u2620", "bad"),
        Mark("not reproduced", "\u2717", "bad"),
        Mark("failed as declared", "\u2205", "bad"),
        Mark("explained", "\u2248", "caution"),
        Mark("too short", "\u2026", "caution"),
        Mark("exceeded", "\u2191", "good"),
        Mark("reproduced", "\u2713", "good"),
        Mark("modelled", "\u223f", "near"),
        Mark("calibrated", "\u2316", "none"),
        Mark("arithmetic", "\u03a3", "none"),
        Mark("not run", "\u2013", "none"),
    )
}
"""How verdicts look."""


def summary(recorded: Sequence[Recorded], titles: Mapping[str, str], missing: Sequence[str]) -> Markup:
    """Return the counts of all verdicts, by paper and by exhibit."""
    papers = [paper for paper in titles if any(each.judged.exhibit.paper == paper for each in recorded)]
    present = [name for name, count in counts([each.judged for each in recorded]).items() if count]
    by_paper: list[Sequence[Cell]] = [
        (
            element("a", f"{paper}: {titles[paper]}", href=f"#{paper}"),
            *_counts([each for each in recorded if each.judged.exhibit.paper == paper], present),
        )
        for paper in papers
    ]
    by_exhibit: list[Sequence[Cell]] = [
        (
            _link(each.judged),
            each.judged.exhibit.experiment.question,
            *_counts([each], present),
        )
        for each in recorded
    ]
    judged = [each.judged for each in recorded]
    parts = [
        element("h2", "Summary", id="summary"),
        element("p", _answer(judged), class_="answer"),
        _bases(judged),
        *_failed(recorded),
        *_paragraph(_short(judged)),
        *_paragraph(seconds_in_words(judged)),
        table("Verdicts by paper", ("paper", *present), by_paper, ("all", *_counts(recorded, present))),
        table("Verdicts by table or figure", ("name", "question", *present), by_exhibit),
    ]
    if missing:
        parts.append(element("p", f"Without a record here: {', '.join(missing)}.", class_="note"))
    return together(*parts, between="\n")


def _bases(judged: Sequence[Judged]) -> Markup:
    """Return the table of what was measured and what wasn't."""
    rows: list[Sequence[Cell]] = [
        (name, Number(str(count), count), verdicts) for name, count, verdicts in by_basis(judged)
    ]
    return table("What was measured, and what was modelled", ("figures", "number", "verdicts"), rows)


def _answer(judged: Sequence[Judged]) -> str:
    """Return the number of measured figures and their verdicts; the table has the others."""
    name, count, verdicts = (*by_basis(judged), ("nothing", 0, ""))[0]
    return (
        f"{name.capitalize()}: {counted(count, 'figure')}. {verdicts.capitalize()}."
        if count
        else "Nothing was run."
    )


def _short(judged: Sequence[Judged]) -> str:
    """Return the number of exhibits with shorter runs than --full, in words; nothing for none."""
    short = sum(bool(each.shortened) for each in judged)
    return (
        f"{short} of {len(judged)} tables and figures were shortened; their rows say in what."
        if short
        else ""
    )


def _failed(recorded: Sequence[Recorded]) -> list[Markup]:
    """Return the table of what failed, and why; nothing where all rules are kept."""
    rows: list[Sequence[Cell]] = [
        (_link(each.judged), claim.title, marked(MARKS[claim.verdict]), _why(claim))
        for verdict in (Verdict.DID_NOT_LEARN, Verdict.NOT_REPRODUCED, Verdict.DECLARED)
        for each in recorded
        for claim in each.judged.claims
        if claim.verdict is verdict
    ]
    rows += [
        (
            _link(each.judged),
            each.judged.exhibit.experiment.question,
            marked(MARKS[NOT_RUN]),
            each.judged.failure,
        )
        for each in recorded
        if each.judged.failure
    ]
    return [table("What failed, and why", ("name", "claim", "verdict", "why"), rows)] if rows else []


def _link(each: Judged) -> Markup:
    return element("a", each.exhibit.name, href=f"#{each.exhibit.name}")


def _why(claim: Claim) -> str:
    """Return why a claim failed: its trainings, another tool, or else the figure beside its rule."""
    if claim.not_learned or claim.declared or claim.other_tool:
        return "; ".join(claim.not_learned) or claim.declared or claim.other_tool
    worst = ""
    if claim.of_each and len(claim.figures) > 1:
        broken = [
            f"{name}: {shown(value, claim.unit)}"
            for name, value in claim.figures.items()
            if not claim.wanted.holds(value)
        ]
        worst = f" ({', '.join(broken)})"
    return f"{shown(claim.mean, claim.unit)}{worst}, and the rule is {_rule(claim)}"


def _paragraph(text: str) -> list[Markup]:
    """Return a note; nothing without text."""
    return [element("p", text, class_="note")] if text else []


def _counts(recorded: Sequence[Recorded], names: Sequence[str]) -> list[Number]:
    found = counts([each.judged for each in recorded])
    return [Number(str(found[name]), found[name]) for name in names]


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
        parts.append(table(caption, COLUMNS, [_claim(each.judged, claim) for claim in claims]))
        picture = plot(claims, exhibit.name, f"{exhibit.paper}, {exhibit.place}. {LEGEND}")
        parts += [] if picture is None else [figure(picture)]
    parts += [element("p", note) for note in notes(each.judged)]
    if exhibit.origins:
        listed = [element("li", f"{name}: {origin}") for name, origin in exhibit.origins.items()]
        summary_of = element("summary", "Where its options and numbers come from")
        parts.append(element("details", summary_of, element("ul", *listed)))
    parts.append(element("p", options_in_words(each.fields["options"]), class_="note"))
    parts += _paragraph(seconds_in_words([each.judged]))
    return element("section", together(*parts, between="\n"), aria_labelledby=exhibit.name)


def _claim(each: Judged, claim: Claim) -> list[Cell]:
    published = claim.published
    value = None if published is None else published.value
    return [
        title_in_words(each, claim),
        marked(MARKS[claim.verdict]),
        each.exhibit.place if published is None else published.place,
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
