"""The report of ``gradwire run``: on standard error at the script's end, as a record, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from gradwire.errors import JobError
from gradwire.fields import Source, whole
from gradwire.page import Part, Report, Section, render
from gradwire.records import make_record
from gradwire.run.comparison import LEGEND, ON_LOSS, Compared
from gradwire.run.outcome import ModelOutcome, RunOutcome
from gradwire.sync.ledger.summary import read_summary, sections_of, verdict_of
from gradwire.tables import Table
from gradwire.units import counted

SCHEMA = "gradwire.run/1"
_OPTIONS = Source("the options of a run", "run 'gradwire run' again", JobError)
NO_MODEL = (
    "not attached, because the script created no DistributedDataParallel and called no fully_shard in a "
    "process with gradwire; any training ran without gradwire"
)


def compared(outcome: RunOutcome, cycles: int) -> Compared | None:
    """Return the comparison of a run, or None if the run had no comparison."""
    return None if outcome.cycles_s is None else Compared(outcome.cycles_s, cycles, outcome.plan)


def verdict(outcome: RunOutcome, cycles: int) -> str:
    """Return the result of ``gradwire run`` in a sentence."""
    found = compared(outcome, cycles)
    if not outcome.attached:
        return " ".join(map(_not_attached, outcome.models)) or f"{NO_MODEL[0].upper()}{NO_MODEL[1:]}."
    return found.verdict() if found else verdict_of(read_summary(outcome.attached[0].ledger))


def report(outcome: RunOutcome, cycles: int) -> list[str | Table]:
    """Return the lines and tables that the command prints at the script's end."""
    if not outcome.models:
        return [f"gradwire: {NO_MODEL}."]
    parts: list[str | Table] = []
    for each in outcome.models:
        parts += [f"gradwire: {line}" for line in _sentences(each)]
    found = compared(outcome, cycles)
    if found is not None and outcome.attached:
        table: list[str | Table] = [] if found.cycles == 0 else ["", found.table(), LEGEND, ON_LOSS]
        parts += ["", found.verdict(), *table]
    return parts


def _sentences(model: ModelOutcome) -> list[str]:
    if model.problem:
        return [_not_attached(model)]
    summary = read_summary(model.ledger)
    steps = counted(summary.steps, "step")
    return [
        f"{model.name}: {steps} averaged by gradwire, the last step with {model.plan}.",
        verdict_of(summary),
    ]


def _not_attached(model: ModelOutcome) -> str:
    return f"Not attached to {model.name}: {model.problem}."


# The record, and its page.


def record_of(options: Mapping[str, object], outcome: RunOutcome, code: int) -> dict[str, object]:
    """Return the record of a run: its options, its outcome, and the script's exit code."""
    return make_record(SCHEMA, {"options": options, "exit_code": code, **asdict(outcome)})


def page_of(record: Mapping[str, Any]) -> str:
    """Return the HTML page of a run's record. Raises ``JobError`` for an invalid record."""
    outcome = RunOutcome.of_record(record)
    cycles = _OPTIONS.fields(record.get("options")).get("cycles", whole())
    every = enumerate(outcome.models, 1)
    sections = [
        *_steps(compared(outcome, cycles)),
        *(_section(each, number, outcome) for number, each in every),
    ]
    title = f"gradwire run: {' and '.join(each.name for each in outcome.models) or 'no model'}"
    return render(Report(title, verdict(outcome, cycles), sections), record)


def _steps(found: Compared | None) -> list[Section]:
    if found is None or found.cycles == 0:
        return []
    parts: list[Part] = [("Step times", found.table()), LEGEND, ON_LOSS]
    return [Section("Steps without and with gradwire", parts, "steps")]


def _section(model: ModelOutcome, number: int, outcome: RunOutcome) -> Section:
    """Return a model's section. ``number`` makes the section's link unique if models have the same name."""
    link = f"model {number}" if outcome.models[1:] else ""
    if model.problem:
        return Section(model.name, [_not_attached(model)], link)
    parts: Sequence[Part] = [
        *_sentences(model),
        *sections_of(read_summary(model.ledger), link or "the model"),
    ]
    return Section(model.name, parts, link)


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page function of each record schema."""
