"""The page: verdicts first, then each paper's tables and figures, then what the records were made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.checkpoints import SUM, is_as_sealed
from gradwire.errors import GradwireError, JobError, SpecError
from gradwire.page import Part, Report, report_page
from gradwire.page import report as made_with
from gradwire.page.markup import Markup, element, together
from gradwire.page.report import document, options_in_words
from gradwire.page.tables import Cell, Mark, Number, figure, marked, table
from gradwire.units import counted
from gradwire_lab.experiments.claim import Claim, Verdict, shown
from gradwire_lab.experiments.claim_plot import plot
from gradwire_lab.experiments.experiment import Experiment
from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.papers.reproduce import (
    NOT_RUN,
    Judged,
    by_basis,
    counts,
    judge,
    notes,
    seconds_in_words,
    title_in_words,
)
from gradwire_lab.experiments.record import RECORD, read_fields

# The page of one experiment's record: its question, and the tables that answer it.


def page_of(record: Mapping[str, Any], experiments: Sequence[Experiment[Any]]) -> str:
    """Return the page of an experiment's record.

    Raises ``JobError`` for a record of none of them, and for one that was altered after it was written.
    """
    if not is_as_sealed(record):
        raise JobError(
            f"the record was altered after it was written: expected the checksum {record[SUM]} over its "
            "fields and rows, got another; restore the file, or measure it anew with --overwrite"
        )
    schema = record["schema"]
    found = [each for each in experiments if each.schema == schema]
    if not found:
        raise JobError(
            f"the schema {schema} is no experiment's of this gradwire; install the one that wrote it"
        )
    experiment = found[0]
    parts = experiment.table(record["rows"])
    told: list[Part] = [part if isinstance(part, str) else (experiment.question, part) for part in parts]
    said = f"{experiment.question[0].upper()}{experiment.question[1:]}"
    unfinished = "" if record.get("finished", True) else " (unfinished)"
    sections = [("What was measured", [part for part in told if part])]
    return report_page(Report(f"Experiment {experiment.name}{unfinished}", said, sections), record)


# Read the records in a folder of ``gradwire reproduce``, and judge each anew.

REMEDY = "repeat its gradwire reproduce with --overwrite"
UNFINISHED = "its record is unfinished; to go on, repeat its gradwire reproduce."
DAMAGES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)
"""What a judge raises for rows without its names, or with other types."""


@dataclass(frozen=True)
class Recorded:
    """An exhibit that was judged by its record, and the record's fields."""

    judged: Judged
    fields: Mapping[str, Any]


def read_all(folder: Path, exhibits: Sequence[Exhibit[Any]]) -> list[Recorded]:
    """Return the exhibits that have a record in ``folder``, in their own order. Raises ``JobError``.

    The verdicts follow from the rows alone. An unfinished record's exhibit counts as not run.
    """
    if not folder.is_dir():
        kind = "is no folder" if folder.exists() else "doesn't exist"
        raise JobError(f"the folder of the records, {folder}, {kind}; name a record, or the folder of one")
    found = [each for each in exhibits if (folder / each.name / RECORD).exists()]
    if not found:
        raise JobError(
            f"{folder} holds no records of gradwire reproduce, whose folders have names such as "
            f"{exhibits[0].name}; name the --out of a gradwire reproduce"
        )
    return [_read(folder / each.name / RECORD, each) for each in found]


def _read(path: Path, exhibit: Exhibit[Any]) -> Recorded:
    try:
        fields = read_fields(path, exhibit.experiment, REMEDY)
    except SpecError as error:
        raise JobError(str(error)) from error
    if fields["schema"] != exhibit.experiment.schema:
        raise JobError(
            f"{path} is of an older gradwire: its schema is {fields['schema']} instead of "
            f"{exhibit.experiment.schema}; {REMEDY}"
        )
    for name in ("machine", "versions", "options"):
        if not isinstance(fields.get(name), dict):
            raise JobError(f"{path} is damaged: {name!r} must be a JSON object; {REMEDY}")
    if not fields["finished"]:
        return Recorded(Judged(exhibit, failure=UNFINISHED), fields)
    try:
        return Recorded(judge(exhibit, fields, fields["rows"]), fields)
    except GradwireError as error:
        raise JobError(f"{path} can't be judged: {error}") from error
    except DAMAGES as error:
        raise JobError(
            f"{path} is damaged: its rows can't be judged ({type(error).__name__}: {error}); {REMEDY}"
        ) from error


# The parts of the page: the summary, and a section for each exhibit.

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
        for verdict in (Verdict.DID_NOT_LEARN, Verdict.NOT_REPRODUCED)
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
    if claim.not_learned or claim.other_tool:
        return "; ".join(claim.not_learned) or claim.other_tool
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


TITLE = "The papers' figures, reproduced"
RULES = (
    "A claim has a rule, and its verdict follows from the record's samples and that rule alone. Did not "
    "learn: a training that the figure rests on failed, so the figure counts for nothing. Reproduced: "
    "measured, and the rule is kept. Exceeded: better than published, for a stated reason. Explained: "
    "not kept, but a second rule is, which follows from a stated reason. Too short: one of these, but with "
    "too few trainings. Not reproduced: none of these. What wasn't measured stands apart: modelled, "
    "calibrated (set from the published figure or its table), and arithmetic (published numbers recombined)."
)


def page(recorded: Sequence[Recorded], exhibits: Sequence[Exhibit[Any]], titles: Mapping[str, str]) -> str:
    """Return the HTML file of records in any order.

    Parameters
    ----------
    recorded
        What was read and judged.
    exhibits
        All that could have a record, in the order of the page.
    titles
        The papers by name.
    """
    order = [each.name for each in exhibits]
    known = sorted(recorded, key=lambda each: order.index(each.judged.exhibit.name))
    missing = [name for name in order if name not in {each.judged.exhibit.name for each in known}]
    papers = [_paper(name, title, known) for name, title in titles.items()]
    links = [("summary", "Summary"), *((name, name) for name in titles), (made_with.ID, made_with.TITLE)]
    present = [link for link in links if link[0] not in titles or _of(link[0], known)]
    parts = (
        summary(known, titles, missing),
        element("p", RULES, class_="note"),
        *papers,
        made_with.made_with_made_with([(each.judged.exhibit.name, each.fields) for each in known]),
    )
    return document(TITLE, present, parts)


def _of(paper: str, recorded: Sequence[Recorded]) -> list[Recorded]:
    return [each for each in recorded if each.judged.exhibit.paper == paper]


def _paper(name: str, title: str, recorded: Sequence[Recorded]) -> Markup:
    own = _of(name, recorded)
    heading = element("h2", f"{name}: {title}", id=name)
    return together(heading, *map(exhibit_section, own), between="\n") if own else Markup()


# The records of ``gradwire reproduce`` as one page: the same records give the same bytes.

__all__ = ["Recorded", "page", "read_all"]
