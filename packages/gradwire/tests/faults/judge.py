"""What is wrong with a run: pure, so that the judge itself can be tested."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from faults.case import STEPS, TIMEOUT_S, WORLD, Report
from faults.rows import End, Moment, Row, Victim
from faults.world import Outcome, expected_reports

MARGIN_S = 5.0
"""How much later than its timeout an error may come: processes share few cores."""

Reference = Mapping[int, list[str]]
"""The histories of an undisturbed run, by rank."""


@dataclass
class Verdict:
    """``hangs``, ``wrong`` and ``kept`` count ranks; ``problems`` has everything, these included."""

    hangs: int = 0
    wrong: int = 0
    kept: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def judge(outcome: Outcome, reference: Reference) -> Verdict:
    """Compare what the ranks report with what the row promises."""
    row = outcome.case.row
    assert row is not None
    verdict = Verdict(hangs=len(outcome.hung))
    verdict.problems += [f"rank {rank} hangs" for rank in outcome.hung]
    verdict.problems += [f"rank {rank} was aborted" for rank in outcome.aborted]
    for rank in expected_reports(outcome.case):
        report = outcome.reports.get(rank)
        if report is None:
            words = outcome.last_words[rank]
            verdict.problems.append(f"rank {rank} gave no report" + (f": {words}" if words else ""))
            continue
        wrong = _wrong_weights(row, report, reference[rank])
        verdict.wrong += bool(wrong)
        verdict.kept += report.kept
        own = rank if row.act != "sub-group" or rank != outcome.case.victim else None  # it counts its group's
        fails = row.end is End.ERROR and not (row.victim is Victim.FINISHES and rank == outcome.case.victim)
        faults = [
            *wrong,
            *_not_as_left(report),
            *(_not_as_failed(report, own) if fails else _not_as_finished(report)),
        ]
        verdict.problems += [f"rank {rank}: {fault}" for fault in faults]
        verdict.seconds += [report.seconds] if fails else []
    verdict.problems += _of_all(row, outcome)
    return verdict


def _wrong_weights(row: Row, report: Report, right: list[str]) -> list[str]:
    """Weights and optimizer state must at every moment have been those of an undisturbed run."""
    found = []
    if report.final != report.history[-1]:
        found.append(f"{report.error} has changed weights or optimizer state")
    if row.end is End.NAN:
        return found
    if row.moment is Moment.ATTACH:  # a sub-group's shards are not those of the world
        return found if len(report.history) == 1 else [*found, "it has trained, though not all attached"]
    if report.history != right[: len(report.history)]:
        found.append(f"after {len(report.history) - 1} updates they are not those of an undisturbed run")
    if report.error is None and row.victim is not Victim.FINISHES and report.history != right:
        found.append(f"{len(report.history) - 1} updates instead of {len(right) - 1}")
    return found


def _not_as_left(report: Report) -> list[str]:
    """A survivor must be able to go on in its process."""
    found = ["what wrapped its model was kept alive"] if report.kept else []
    return [*found, f"alone it could not train on: {report.alone}"] if report.alone else found


def _not_as_failed(report: Report, own: int | None) -> list[str]:
    if report.error is None:
        return ["no error"]
    found = []
    if not report.named:
        found.append(f"{report.error} is no error of gradwire's: {report.text}")
    if report.seconds > TIMEOUT_S + MARGIN_S:
        found.append(f"the error came after {report.seconds:.1f} s")
    if own is not None and not re.search(rf"\brank {own}\b", report.text):
        found.append(f"the error does not name this rank: {report.text}")
    if not _ranks_in(report.text) - {report.rank} and "torch's store at" not in report.text:
        found.append(f"the error names no peer: {report.text}")
    where = r"\bstep\b|\ball-gather\b|\breduce-scatter\b|attach|PipeSGD|on all ranks, but"
    if not re.search(where, report.text):
        found.append(f"the error does not say where: {report.text}")
    if report.again is not None and (report.again[0].startswith("unnamed") or report.again[1] > MARGIN_S):
        found.append(f"the step after the error: {report.again}")
    return found


def _ranks_in(text: str) -> set[int]:
    lists = re.findall(r"\branks? (\d+(?:, \d+)*)", text)
    return {int(rank) for each in lists for rank in each.split(", ")}


def _not_as_finished(report: Report) -> list[str]:
    return [] if report.error is None else [f"{report.error}: {report.text}"]


def _of_all(row: Row, outcome: Outcome) -> list[str]:
    """What the reports must have in common; and the fault must have happened."""
    reports = list(outcome.reports.values())
    found = []
    struck = outcome.reports.get(outcome.case.victim)
    if row.moment in (Moment.FRAME, Moment.CALL, Moment.CHOICE) and struck is not None and not struck.struck:
        found.append(f"no {row.moment.name.lower()} met the fault")
    if row.moment is Moment.OUTSIDE and outcome.scans == 0:
        found.append(f"{outcome.scans} scans came through")
    texts = [report.text for report in reports if report.error is not None]
    if row.end is End.ERROR and not any(re.search(row.says, text) for text in texts):
        found.append(f"no error says {row.says!r}: {texts}")
    if row.end is End.ERROR and row.moment is not Moment.ATTACH:
        lengths = [len(report.history) for report in reports if report.error is not None]
        if lengths and max(lengths) - min(lengths) > 1:
            found.append(f"the ranks are {max(lengths) - min(lengths)} updates apart")
    if row.end is End.NAN:
        found += _not_one_nan(outcome)
    return found


def _not_one_nan(outcome: Outcome) -> list[str]:
    counts = [report.nan for report in outcome.reports.values()]
    wanted = [0, 0, 1] if outcome.case.method == "fsdp" else [1, 1, 1]
    finals = {report.final for report in outcome.reports.values()}
    if sorted(counts) != wanted:
        return [f"{counts} weights of the ranks are not finite"]
    return ["the ranks differ"] if wanted[0] == 1 and len(finals) > 1 else []


def check_reference(method: str, histories: Reference, steps: int = STEPS) -> list[str]:
    """Return what is wrong with an undisturbed run: every update changes something, on all ranks alike."""
    found = [
        f"rank {rank} has {len(set(history))} different states instead of {steps + 1}"
        for rank, history in histories.items()
        if len(set(history)) != steps + 1 or len(history) != steps + 1
    ]
    if len(histories) != WORLD:
        found.append(f"{len(histories)} ranks report")
    if method != "fsdp" and len({tuple(history) for history in histories.values()}) != 1:
        found.append("the ranks differ")
    return found
