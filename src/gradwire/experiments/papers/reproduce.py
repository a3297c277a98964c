"""Run exhibits one after the other, and judge what is in their records."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.benchmark.display import about
from gradwire.errors import GradwireError
from gradwire.experiments.claim import Claim
from gradwire.experiments.experiment import Row
from gradwire.experiments.heard import lossy_warnings
from gradwire.experiments.others import others_in_words
from gradwire.experiments.papers.exhibit import Exhibit
from gradwire.experiments.record import RECORD, REMEDY, RecordFile, read_fields
from gradwire.experiments.run import perform

LONGEST = 60
"""Characters of a line of progress that say what was measured."""
OTHER_OPTIONS = (
    "its options are those of neither --quick nor --full; repeat its gradwire reproduce with --overwrite."
)


@dataclass(frozen=True)
class Judged:
    """An exhibit with its claims, or why this machine couldn't run it.

    Attributes
    ----------
    expected_s, measured_s
        The seconds that its record expects and took; None if an older one doesn't say it.
    shortened
        The options that a short run has less of than ``--full``, each with both values.
    lossy
        The lossy warnings that came while it was measured.
    others
        What other programs took of the cores meanwhile, in a sentence; nothing if its record doesn't say it.
    """

    exhibit: Exhibit[Any]
    claims: Sequence[Claim] = ()
    failure: str = ""
    expected_s: float | None = None
    measured_s: float | None = None
    shortened: Mapping[str, str] = field(default_factory=dict)
    lossy: Sequence[str] = ()
    others: str = ""


def judge(exhibit: Exhibit[Any], fields: Mapping[str, Any], rows: Sequence[Row]) -> Judged:
    """Judge an exhibit by the rows and fields of its finished record.

    One of other options than those of ``--quick`` and ``--full`` counts as not run: which rows would have to
    be there is not known.

    Raises ``JobError`` for a record without the rows of a comparator, and whatever the exhibit's claims raise
    for rows without their names.
    """
    if not exhibit.has_options(fields["options"]):
        return Judged(exhibit, failure=OTHER_OPTIONS)
    exhibit.check_rows(fields["options"], rows)
    return Judged(
        exhibit,
        tuple(exhibit.judge(rows)),
        expected_s=fields.get("expected_s"),
        measured_s=fields["measured_s"] or None,
        shortened=exhibit.shortened(fields["options"]),
        lossy=lossy_warnings(rows),
        others=others_in_words(rows),
    )


def reproduce(
    exhibits: Sequence[Exhibit[Any]],
    out: Path,
    say: Callable[[str], None],
    *,
    full: bool = False,
    overwrite: bool = False,
    across_commits: bool = False,
) -> list[Judged]:
    """Run exhibits, and return their claims in the same order.

    Each has a folder of its own name in ``out``. What finished records there hold isn't measured again, and
    an unfinished one is continued. One that can't be run doesn't keep the others from it.

    Parameters
    ----------
    say
        Takes lines of progress: what is done, and about how long the rest takes.
    full
        Whether to run for hours instead of minutes.
    overwrite
        Whether to replace older records.
    across_commits
        Whether records of other commits count, and are continued.

    Raises
    ------
    JobError
        Before anything is measured, if a folder can't be written or holds something else, such as a record of
        another machine, version, commit, or of other options.
    """
    for each in exhibits:
        RecordFile(
            each.experiment,
            each.options(full),
            out / each.name,
            overwrite,
            keeps_finished=True,
            across_commits=across_commits,
        )
    clock = _Clock([each.seconds[full] for each in exhibits])
    judged = []
    for number, each in enumerate(exhibits):
        how = {"overwrite": overwrite, "across_commits": across_commits}
        judged.append(_perform(each, number, out, say, clock, full=full, **how))
        clock.done(number)
        rest = clock.rest_s(number + 1, 0.0)
        left = f"; {about(rest)} left" if number + 1 < len(exhibits) else ""
        failed = f" failed: {judged[-1].failure}" if judged[-1].failure else ""
        say(f"{number + 1}/{len(exhibits)} {each.name}{failed or ' done'}{left}")
    return judged


def _perform(
    each: Exhibit[Any],
    number: int,
    out: Path,
    say: Callable[[str], None],
    clock: _Clock,
    *,
    full: bool,
    **how: bool,
) -> Judged:
    options = each.options(full)
    cells = len(each.experiment.cells(options))

    def advance(done: int, text: str) -> None:
        rest = clock.rest_s(number, done / max(cells, 1))
        what = textwrap.shorten(text, LONGEST, placeholder=" ...")
        say(f"  {each.name} {done}/{cells} {what}; {about(rest)} left")

    try:
        rows = perform(
            each.experiment,
            options,
            out / each.name,
            quiet=True,
            keeps_finished=True,
            expected_s=each.seconds[full],
            advance=advance,
            **how,
        )
        return judge(each, read_fields(out / each.name / RECORD, each.experiment, REMEDY), rows)
    except GradwireError as error:
        return Judged(each, failure=str(error))


def seconds_in_words(judged: Sequence[Judged]) -> str:
    """Return how long measuring took and was expected to take; nothing if no record says it."""
    known = [
        (each.expected_s, each.measured_s)
        for each in judged
        if each.expected_s is not None and each.measured_s is not None
    ]
    if not known:
        return ""
    expected_s, measured_s = (sum(each) for each in zip(*known, strict=True))
    of = "" if len(known) == len(judged) else f" of {len(known)} of {len(judged)} tables and figures"
    return f"Measuring{of} took {about(measured_s)}; the budget is {about(expected_s)}."


class _Clock:
    """Estimates the rest: the expected seconds of what is left, at the pace of what was done."""

    def __init__(self, expected_s: Sequence[float]) -> None:
        self._expected_s = expected_s
        self._took_s, self._of_s, self._since = 0.0, 0.0, time.monotonic()

    def done(self, number: int) -> None:
        """Note that one is done. What was there before took no time, and says nothing of the pace."""
        took_s = time.monotonic() - self._since
        self._since += took_s
        if took_s > 0.05 * self._expected_s[number]:
            self._took_s += took_s
            self._of_s += self._expected_s[number]

    def rest_s(self, number: int, share: float) -> float:
        """Return the seconds from a share of one on until the end of the last."""
        pace = self._took_s / self._of_s if self._of_s > 0 else 1.0
        left = self._expected_s[number:]
        return pace * (sum(left) - share * left[0]) if left else 0.0
