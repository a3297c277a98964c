"""The doctor's report: a table on standard output, a JSON record, and its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.doctor.finding import Diagnosis, DoctorOptions, Finding, Offset, any_failed
from gradwire.doctor.local import examine_machine
from gradwire.errors import JobError
from gradwire.launch.launched import launched_rank, launched_workers
from gradwire.page import Mark, Part, Picture, Report, Section, check_record, keep, render
from gradwire.page.picture import CURVES, legend_above, without_frame
from gradwire.records import make_record
from gradwire.tables import Column, Table, show
from gradwire.units import format_duration, format_rate, ranks_in_words
from gradwire.version import import_problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "gradwire.doctor/1"
COLUMNS = tuple(map(Column.of_text, ("check", "result", "detail")))
_RESULTS = ("ok", "warn", "FAIL")


def show_report(title: str, diagnosis: Diagnosis) -> None:
    """Print title, verdict and table to standard output."""
    findings = diagnosis.findings
    show(title, f"{counted(findings)}: {verdict(findings)}", "", table(findings))


def table(findings: Sequence[Finding]) -> Table:
    """Return a table with a row for each finding."""
    return Table(COLUMNS, [(each.check, MARKS[each.result], each.detail) for each in findings])


def counted(findings: Sequence[Finding]) -> str:
    """Return the number of findings with each result, as text."""
    counts = [sum(each.result == result for each in findings) for result in _RESULTS]
    return ", ".join(f"{number} {result}" for number, result in zip(counts, _RESULTS, strict=True))


def verdict(findings: Sequence[Finding]) -> str:
    """Return whether training would work, as text, or the remedy."""
    problem = "training would fail here; fix the checks marked FAIL"
    return problem if any_failed(findings) else "ready to train"


def describe(diagnosis: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as a JSON record."""
    fields = {
        "ready": not any_failed(diagnosis.findings),
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "ranks": [
            {"rank": rank, **asdict(card)}
            for rank, card in zip(diagnosis.ranks, diagnosis.cards, strict=True)
        ],
        "clocks": [
            {"ranks": [0, rank], **asdict(offset)} for rank, offset in sorted(diagnosis.offsets.items())
        ],
        "lines": [{"ranks": [0, rank], **asdict(look)} for rank, look in sorted(diagnosis.looks.items())],
    }
    return make_record(SCHEMA, fields)


# The page of a diagnosis: the verdict, the problems, and all findings.

_SIGNS = {"FAIL": ("\u2717", "bad"), "warn": ("!", "caution"), "ok": ("\u2713", "good")}
MARKS = MappingProxyType({result: Mark(result, *shown) for result, shown in _SIGNS.items()})
"""The mark of each result, the worst first."""
SOFTWARE = ("gradwire", "python", "torch", "wire_version", "target", "addresses")
LINES = (*map(Column.of_text, ("ranks", "clocks differ by")), *map(Column, ("latency", "there", "back")))


def page_of(record: Mapping[str, Any]) -> str:
    """Return the HTML page of a doctor's record."""
    findings = [Finding(**each) for each in record["findings"]]
    ranks = [each["rank"] for each in record["ranks"]]
    worst = sorted(findings, key=lambda each: [*MARKS].index(each.result))
    bad = [each for each in worst if each.result != "ok"]
    said = verdict(findings)
    sections = [
        Section("What to do", [("Failures and warnings", table(bad))] if bad else [], is_open=True),
        Section("Findings", [("All checks", table(worst))] if worst else []),
        Section("Ranks", _ranks(record["ranks"])),
        Section("Between ranks", _between(record["clocks"], record["lines"])),
    ]
    title = f"gradwire doctor: {'this machine' if len(ranks) == 1 else ranks_in_words(ranks)}"
    said = f"{said[0].upper()}{said[1:]}: {counted(findings)}."
    return render(Report(title, said, sections, _rates(record["lines"])), record)


def _rates(lines: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Return the picture of the rates between rank 0 and each other rank, or None without measurements."""
    if not lines:
        return None
    names = [f"ranks {' and '.join(map(str, each['ranks']))}" for each in lines]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (way, label) in enumerate((("there", "from rank 0"), ("back", "to rank 0"))):
            places = [place + 0.2 * (2 * number - 1) for place in range(len(lines))]
            rates = [8e-6 * each[f"{way}_nbytes_per_s"] for each in lines]
            axes.barh(places, rates, height=0.36, color=CURVES[number], label=label)
        axes.set_yticks(range(len(lines)), names)
        axes.invert_yaxis()
        axes.set_xlabel("rate of the link [Mbit/s]")
        legend_above(axes, 2)
        without_frame(axes)

    caption = "Rates of the links between rank 0 and each other rank."
    return Picture("rates", caption, paint, 1.1 + 0.4 * len(lines))


def _ranks(cards: Sequence[Mapping[str, Any]]) -> list[Part]:
    rows = []
    for card in cards:
        listed = {**card, "addresses": ", ".join(card["addresses"])}
        rows.append(tuple(str(listed[name]) for name in ("rank", *SOFTWARE)))
    columns = (Column("rank"), *map(Column.of_text, SOFTWARE))
    return [("The software of each rank", Table(columns, rows))]


def _between(clocks: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return the table of clocks and links between rank 0 and each other rank."""
    offsets = {tuple(each["ranks"]): str(Offset(each["offset_s"], each["uncertainty_s"])) for each in clocks}
    looks = {
        tuple(each["ranks"]): (
            format_duration(each["latency_s"]),
            *(format_rate(each[f"{way}_nbytes_per_s"]) for way in ("there", "back")),
        )
        for each in lines
    }
    pairs = sorted({*offsets, *looks})
    rows = [
        (" and ".join(map(str, pair)), offsets.get(pair, ""), *looks.get(pair, ("", "", "")))
        for pair in pairs
    ]
    return [("Clocks and links of pairs of ranks", Table(LINES, rows))] if rows else []


PAGES = MappingProxyType({SCHEMA: page_of})
"""The function that renders the page of a record, by the record's schema."""


# ``gradwire doctor`` on this machine alone, or as one rank of a launched job.


def run_doctor(options: DoctorOptions) -> int:
    """Run all checks, report, and return 1 if training would fail, else 0. Raises ``GradwireError``."""
    if not 1 <= options.timeout_s <= 86_400:
        raise JobError(
            f"--timeout: expected 1 to 86400 seconds, got {options.timeout_s:g}; pass a time in this range"
        )
    world = launched_workers(has_server=False, asked=None) or 1
    rank = launched_rank()[0] if world > 1 else 0
    file = options.json_file if rank == 0 else None
    if file is not None:
        check_record("--json", file, options.overwrite)
    if world == 1 or import_problem("torch"):
        title = "gradwire doctor: this machine" if world == 1 else f"gradwire doctor: rank {rank} of {world}"
        card = examine_machine(options.plan_file, world, 1)
        diagnosis = Diagnosis([*card.findings], [card], [rank])
    else:
        from gradwire.doctor.ranks import examine_ranks

        title, examined = examine_ranks(rank, world, options)
        if isinstance(examined, int):
            return examined
        diagnosis = examined
    show_report(title, diagnosis)
    if file is not None:
        keep(file, describe(diagnosis), page_of)
    return int(any_failed(diagnosis.findings))
