"""HTML pages of one experiment's record, and of all records of ``gradwire reproduce``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire import page as pages
from gradwire.checkpoints import SUM, is_as_sealed
from gradwire.errors import GradwireError, JobError, SpecError
from gradwire.page import Details, Mark, Note, Number, PageLink, Part, Picture, Report, Section, render
from gradwire.page.picture import COLOURS, legend_above, paint_bars
from gradwire.tables import Column, Table
from gradwire.units import counted
from gradwire_lab.experiments.answer import Findings, captioned
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The page of one experiment's record: the question, and the tables that answer it.


def page_of(
    record: Mapping[str, Any],
    experiments: Sequence[Experiment[Any]],
    exhibits: Collection[Exhibit[Any]] = (),
) -> str:
    """Return the HTML page of an experiment's or an exhibit's record. Raises ``JobError``."""
    if not is_as_sealed(record):
        raise JobError(
            f"the record was altered after it was written: expected the checksum {record[SUM]} over its "
            "fields and rows, got a different checksum; restore the file, or measure again with --overwrite"
        )
    schema = record["schema"]
    found = [each for each in (*experiments, *(it.experiment for it in exhibits)) if each.schema == schema]
    if not found:
        raise JobError(
            f"expected the schema of an experiment, got {schema}; install the version of gradwire that wrote "
            "the record"
        )
    experiment = found[0]
    parts = experiment.table(record["rows"])
    own = (each for each in exhibits if each.experiment.schema == schema)
    exhibit = next((each for each in own if each.has_options(record.get("options", {}))), None)
    said, hero = _answered(record, experiment, parts, exhibit)
    unfinished = "" if record.get("finished", True) else " (unfinished)"
    sections = [Section("What was measured", captioned(parts, experiment.question))]
    return render(Report(f"Experiment {experiment.name}{unfinished}", said, sections, hero), record)


def _answered(
    record: Mapping[str, Any],
    experiment: Experiment[Any],
    parts: Sequence[str | Table],
    exhibit: Exhibit[Any] | None,
) -> tuple[str, Picture | None]:
    """Return the question with its answer, from the claims or a column of the tables, and a picture."""
    asked = f"{experiment.question[0].upper()}{experiment.question[1:]}"
    if exhibit is not None and record.get("finished", True):
        judged = judge(exhibit, record, record["rows"])
        if judged.claims:
            return f"{asked} {_answer([judged])}", plot(judged.claims, exhibit.name, LEGEND)
    found = None if experiment.answer is None else Findings.of(parts, experiment.answer)
    return (asked, None) if found is None else (f"{asked} {found.in_words()}", found.bars())


# Read the records in a folder of ``gradwire reproduce``, and compute each verdict again.

REMEDY = "repeat the same gradwire reproduce with --overwrite"
UNFINISHED = "the record is unfinished; to continue, repeat the same gradwire reproduce."
DAMAGES = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)
"""The errors that a judgement may raise for rows with missing names or unexpected types."""


@dataclass(frozen=True)
class Recorded:
    """An exhibit judged from a record, and the fields of that record."""

    judged: Judged
    fields: Mapping[str, Any]


def read_all(folder: Path, exhibits: Collection[Exhibit[Any]]) -> list[Recorded]:
    """Return the exhibits with a record in ``folder``, judged from the rows alone. Raises ``JobError``."""
    if not folder.is_dir():
        kind = "isn't a folder" if folder.exists() else "doesn't exist"
        raise JobError(f"expected a folder of records, got {folder}, which {kind}; pass an existing folder")
    found = [each for each in exhibits if (folder / each.name / RECORD).exists()]
    if not found:
        raise JobError(
            f"expected records of gradwire reproduce in {folder}, in folders such as "
            f"{next(iter(exhibits)).name}, got none; pass the --out of gradwire reproduce"
        )
    return [_read(folder / each.name / RECORD, each) for each in found]


def _read(path: Path, exhibit: Exhibit[Any]) -> Recorded:
    try:
        fields = read_fields(path, exhibit.experiment, REMEDY)
    except SpecError as error:
        raise JobError(str(error)) from error
    if fields["schema"] != exhibit.experiment.schema:
        raise JobError(
            f"{path} is from an older gradwire: expected the schema {exhibit.experiment.schema}, "
            f"got {fields['schema']}; {REMEDY}"
        )
    for name in ("machine", "versions", "options"):
        if not isinstance(fields.get(name), dict):
            raise JobError(f"{path} is damaged: expected a JSON object as {name!r}; {REMEDY}")
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

COLUMNS = (
    *map(Column.of_text, ("claim", "verdict", "where")),
    *map(Column, ("published", "here")),
    Column.of_text("rule"),
)
LEGEND = (
    "Dot: the figure here, or a cross if the rule doesn't hold. Small dots: the figures behind the mean. "
    "Diamond: the published figure. Band: the figures that the rule allows."
)
MARKS = {
    str(mark): mark
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
SHADES = (1.0, 0.55, 0.3)
"""The opacities of verdicts with the same colour in the picture."""
RULES = Note(
    "A claim has a rule, and its verdict follows only from the record's samples and that rule. Did not "
    "learn: a training run behind the figure failed, so the figure doesn't count. Reproduced: measured, "
    "and the rule holds. Exceeded: better than published, for a stated reason. Explained: the rule "
    "doesn't hold, but a second rule with a stated reason does. Too short: reproduced, exceeded, or "
    "explained, but with too few training runs. Not reproduced: measured, and no rule holds. Figures that "
    "weren't measured are listed separately: modelled, calibrated (set from the published figure or its "
    "table), and arithmetic (published numbers recombined)."
)


def summary(recorded: Sequence[Recorded], titles: Mapping[str, str], missing: Sequence[str]) -> Section:
    """Return the section with the number of claims per verdict, by paper and by exhibit."""
    judged = [each.judged for each in recorded]
    present = [name for name, count in counts(judged).items() if count]
    verdicts = [*map(Column, present)]
    by_paper = [
        (PageLink(f"{paper}: {title}", paper), *_counts(own, present))
        for paper, title in titles.items()
        if (own := _of(paper, judged))
    ]
    by_exhibit = [
        (_link(each), each.exhibit.experiment.question, *_counts([each], present)) for each in judged
    ]
    of_papers = [*by_paper, ("all", *_counts(judged, present))]
    papers = Table([Column.of_text("paper"), *verdicts], of_papers, has_total=True)
    exhibits = Table([*map(Column.of_text, ("name", "question")), *verdicts], by_exhibit)
    bases = [(name, str(count), verdicts) for name, count, verdicts in by_basis(judged)]
    short = sum(bool(each.shortened) for each in judged)
    shortened = f"{short} of {len(judged)} tables and figures were shortened; their rows say how."
    parts: list[Part] = [
        ("What was measured, and what was modelled", Table(BASES, bases)),
        *_failed(judged),
        *_notes(shortened if short else "", seconds_in_words(judged)),
        ("Verdicts by paper", papers),
        ("Verdicts by table or figure", exhibits),
        *_notes(f"Exhibits without a record here: {', '.join(missing)}." if missing else ""),
        RULES,
    ]
    return Section("Summary", parts)


BASES = (Column.of_text("figures"), Column("number"), Column.of_text("verdicts"))


def _answer(judged: Sequence[Judged]) -> str:
    """Return a sentence with the number of measured figures and their verdicts."""
    name, count, verdicts = (*by_basis(judged), ("nothing", 0, ""))[0]
    if not count:
        return "No exhibit was run."
    return f"{name.capitalize()}: {counted(count, 'figure')}. {verdicts.capitalize()}."


def _failed(judged: Sequence[Judged]) -> list[Part]:
    """Return the table of failures and their reasons, or nothing without failures."""
    rows = [
        (_link(each), claim.title, MARKS[claim.verdict], _why(claim))
        for verdict in (Verdict.DID_NOT_LEARN, Verdict.NOT_REPRODUCED, Verdict.DECLARED)
        for each in judged
        for claim in each.claims
        if claim.verdict is verdict
    ]
    rows += [
        (_link(each), each.exhibit.experiment.question, MARKS[NOT_RUN], each.failure)
        for each in judged
        if each.failure
    ]
    columns = [*map(Column.of_text, ("name", "claim", "verdict", "why"))]
    return [("What failed, and why", Table(columns, rows))] if rows else []


def _link(each: Judged) -> PageLink:
    return PageLink(each.exhibit.name, each.exhibit.name)


def _why(claim: Claim) -> str:
    """Return the reason for a claim's failure: the training runs, the tool, or the figure and its rule."""
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


def _notes(*texts: str) -> list[Note]:
    """Return a note for each nonempty text."""
    return [Note(text) for text in texts if text]


def _counts(judged: Sequence[Judged], names: Sequence[str]) -> list[str]:
    found = counts(judged)
    return [str(found[name]) for name in names]


def exhibit_section(each: Recorded) -> Section:
    """Return an exhibit's claims as a table and a plot, with reasons, errata, scaling, and options."""
    exhibit, claims = each.judged.exhibit, each.judged.claims
    heading = f"{exhibit.paper}, {exhibit.place}"
    parts: list[Part] = [exhibit.experiment.question]
    if each.judged.failure:
        parts.append(MARKS[NOT_RUN])
    if claims:
        table = Table(COLUMNS, [_claim(each.judged, claim) for claim in claims])
        picture = plot(claims, exhibit.name, f"{heading}. {LEGEND}")
        parts += [(f"{heading}: published and here", table), *([] if picture is None else [picture])]
    parts += notes(each.judged)
    if exhibit.origins:
        listed = [f"{name}: {origin}" for name, origin in exhibit.origins.items()]
        parts.append(Details("Origins of the options and numbers", listed))
    parts += _notes(pages.options_in_words(each.fields["options"]), seconds_in_words([each.judged]))
    return Section(heading, parts, link=exhibit.name)


def _claim(each: Judged, claim: Claim) -> tuple[str, ...]:
    """Return a claim as a row: figures with a name each follow their mean."""
    place, published = each.exhibit.place, Number("", None)
    if claim.published is not None:
        place, value = claim.published.place, claim.published.value
        least = min(value) if isinstance(value, tuple) else value
        published = Number(claim.published.in_words(claim.unit), least)
    named = [f"{name}: {shown(value, claim.unit)}" for name, value in claim.figures.items()]
    here = Number(shown(claim.mean, claim.unit), claim.mean, named if len(named) > 1 else ())
    return title_in_words(each, claim), MARKS[claim.verdict], place, published, here, _rule(claim)


def _rule(claim: Claim) -> str:
    rule = f"{'each ' if claim.of_each else ''}{claim.wanted.in_words(claim.unit)}"
    if claim.otherwise is None:
        return rule
    return f"{rule}; explained: {claim.otherwise.bound.in_words(claim.unit)}"


def page(recorded: Sequence[Recorded], exhibits: Collection[Exhibit[Any]], titles: Mapping[str, str]) -> str:
    """Return the HTML page of records, in the order of ``exhibits``, grouped by the papers in ``titles``."""
    order = [each.name for each in exhibits]
    known = sorted(recorded, key=lambda each: order.index(each.judged.exhibit.name))
    judged = [each.judged for each in known]
    missing = [name for name in order if name not in {each.exhibit.name for each in judged}]
    of_paper = {name: [each for each in known if each.judged.exhibit.paper == name] for name in titles}
    papers = [
        Section(f"{name}: {title}", [*map(exhibit_section, of_paper[name])], link=name)
        for name, title in titles.items()
    ]
    sections = [summary(known, titles, missing), *papers]
    report = Report("The papers' figures, reproduced", _answer(judged), sections, _verdicts(judged, titles))
    return pages.render_all(report, [(each.judged.exhibit.name, each.fields) for each in known])


def _verdicts(judged: Sequence[Judged], titles: Mapping[str, str]) -> Picture:
    """Return the picture of the number of claims per verdict, with a bar for each paper."""
    found = {paper: counts(own) for paper in titles if (own := _of(paper, judged))}
    present = [verdict for verdict in MARKS if any(each[verdict] for each in found.values())]

    def paint(figure: Figure) -> None:
        axes, seen = figure.subplots(), Counter[str]()
        parts = [
            (verdict, COLOURS[MARKS[verdict].tone], [float(each[verdict]) for each in found.values()])
            for verdict in present
        ]
        paint_bars(axes, [*found], parts, "claims [number]")
        for verdict, bars in zip(present, axes.containers, strict=True):
            tone = MARKS[verdict].tone
            for bar in bars.get_children():
                bar.set_alpha(SHADES[seen[tone] % len(SHADES)])
            seen[tone] += 1
        legend_above(axes, 4)

    caption, height_in = (
        "Verdicts of all claims, by paper; the summary has the numbers.",
        1.2 + 0.4 * len(found),
    )
    return Picture("verdicts", caption, paint, height_in, height_in + 0.4)


def _of(paper: str, judged: Sequence[Judged]) -> list[Judged]:
    return [each for each in judged if each.exhibit.paper == paper]
