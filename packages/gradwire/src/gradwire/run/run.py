"""``gradwire run``: run a script with gradwire attached, and report rank 0's outcome."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwire.errors import JobError
from gradwire.fields import Source, whole
from gradwire.page import RECORD, Part, Report, Section, keep, render
from gradwire.records import make_record
from gradwire.run.comparison import BLOCK_STEPS, LEGEND, ON_LOSS, Compared
from gradwire.run.outcome import ModelOutcome, RunOutcome
from gradwire.run.settings import RunSettings
from gradwire.script.command import run_script
from gradwire.script.lifeline import private_folder
from gradwire.sync.ledger.summary import read_summary, sections_of, verdict_of
from gradwire.tables import Table, lines
from gradwire.units import counted

STEPS = 5 * BLOCK_STEPS
"""The default number of counted steps for each compared method: five cycles."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that are passed on to the script, which may handle them by saving a checkpoint."""


@dataclass(frozen=True)
class RunOptions:
    """The options of ``gradwire run``."""

    command: tuple[str, ...]  # the script's command line
    out: Path  # the folder of the record and its page
    plan: str | None = None  # the codec, or the file of a plan; None if the run chooses its plan
    compare: bool = False  # whether steps without gradwire are also measured
    steps: int = STEPS  # the number of counted steps for each method in a comparison
    strict: bool = False
    timeout_s: float = 30.0
    quiet: bool = False

    @property
    def cycles(self) -> int:
        """The number of cycles of a comparison, or 0 for none."""
        return -(-self.steps // BLOCK_STEPS) if self.compare else 0

    def values(self) -> dict[str, object]:
        """Return the run's options as the record contains them."""
        return {
            "command": [*self.command],
            "plan": self.plan or "auto",
            "cycles": self.cycles,
            "strict": self.strict,
            "timeout_s": self.timeout_s,
        }


def run_attached(options: RunOptions) -> int:
    """Run the script with gradwire, report, and return the script's exit code. Raises ``JobError``."""
    with private_folder() as folder:
        settings = RunSettings(
            str(folder), options.plan, options.timeout_s, options.strict, options.cycles, options.quiet
        )
        code = run_script(options.command, settings.entry(), PASSED_ON)
        if not settings.outcome.exists() and settings.elsewhere.exists():
            return code  # rank 0's machine prints the result
        outcome = RunOutcome.load(settings.outcome) if settings.outcome.exists() else RunOutcome()
    if not options.quiet:
        sys.stderr.write("".join(f"{line}\n" for line in lines(*report(outcome, options.cycles))))
    if outcome.models:
        page = keep(options.out / RECORD, record_of(options.values(), outcome, code), page_of, quiet=True)
        if page and not options.quiet:
            sys.stderr.write(f"gradwire: the page is {options.out / 'report.html'}\n")
    if options.strict and code == 0 and not outcome.attached:
        problem = "gradwire could not be attached to any model; see the reasons above"
        raise JobError(f"--strict: {problem if outcome.models else NO_MODEL}")
    return code


# The report: on standard error at the script's end, as a record, and as a page.

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
        problems = [sentence for each in outcome.models for sentence in _sentences(each)]
        return " ".join(problems) or f"{NO_MODEL[0].upper()}{NO_MODEL[1:]}."
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
        parts += ["", found.verdict()]
        parts += ["", found.table(), LEGEND, ON_LOSS] if found.cycles else []
    return parts


def _sentences(model: ModelOutcome) -> list[str]:
    if model.problem:
        return [f"Not attached to {model.name}: {model.problem}."]
    summary = read_summary(model.ledger)
    averaged = f"{counted(summary.steps, 'step')} averaged by gradwire"
    return [f"{model.name}: {averaged}, the last step with {model.plan}.", verdict_of(summary)]


# The record, and its page.


def record_of(options: Mapping[str, object], outcome: RunOutcome, code: int) -> dict[str, object]:
    """Return the record of a run: its options, its outcome, and the script's exit code."""
    return make_record(SCHEMA, {"options": options, "exit_code": code, **asdict(outcome)})


def page_of(record: Mapping[str, Any]) -> str:
    """Return the HTML page of a run's record. Raises ``JobError`` for an invalid record."""
    outcome = RunOutcome.of_record(record)
    cycles = _OPTIONS.fields(record.get("options")).get("cycles", whole())
    sections = []
    found = compared(outcome, cycles)
    if found is not None and found.cycles:
        parts: list[Part] = [("Step times", found.table()), LEGEND, ON_LOSS]
        sections.append(Section("Steps without and with gradwire", parts, "steps"))
    for number, model in enumerate(outcome.models, 1):
        link = f"model {number}" if outcome.models[1:] else ""  # unique if models have the same name
        parts = [*_sentences(model)]
        if not model.problem:
            parts += sections_of(read_summary(model.ledger), link or "the model")
        sections.append(Section(model.name, parts, link))
    title = f"gradwire run: {' and '.join(each.name for each in outcome.models) or 'no model'}"
    return render(Report(title, verdict(outcome, cycles), sections), record)


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page function of each record schema."""
