"""``gradwire run``: run a script with gradwire attached, and report rank 0's outcome."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from gradwire.errors import JobError
from gradwire.page import RECORD, keep
from gradwire.run.comparison import BLOCK_STEPS
from gradwire.run.outcome import RunOutcome
from gradwire.run.report import NO_MODEL, page_of, record_of, report
from gradwire.run.settings import RunSettings
from gradwire.script.command import run_script
from gradwire.script.lifeline import private_folder
from gradwire.tables import lines

STEPS = 5 * BLOCK_STEPS
"""The default number of counted steps for each compared method: five cycles."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that are passed on to the script, which may handle them by saving a checkpoint."""


@dataclass(frozen=True)
class RunOptions:
    """The options of ``gradwire run``.

    Attributes
    ----------
    command
        The script's command line.
    out
        The folder of the record and its page.
    plan
        The codec, or the file of a plan; None if the run chooses its plan.
    compare
        Whether steps without gradwire are also measured.
    steps
        The number of counted steps for each method in a comparison.
    """

    command: tuple[str, ...]
    out: Path
    plan: str | None = None
    compare: bool = False
    steps: int = STEPS
    strict: bool = False
    timeout_s: float = 30.0
    quiet: bool = False

    @property
    def cycles(self) -> int:
        """The number of cycles of a comparison, or 0 for none."""
        return -(-self.steps // BLOCK_STEPS) if self.compare else 0

    def values(self) -> Mapping[str, object]:
        """Return the run's options as the record contains them."""
        return MappingProxyType(
            {
                "command": [*self.command],
                "plan": self.plan or "auto",
                "cycles": self.cycles,
                "strict": self.strict,
                "timeout_s": self.timeout_s,
            }
        )


def run_attached(options: RunOptions) -> int:
    """Run the script with gradwire attached, print and write the result, and return the script's exit code.

    Raises ``JobError``.
    """
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
