"""Progress events as lines, with which a rank's process reports its progress to another process."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from gradwire_lab.job.options import parse_runs
from gradwire_lab.job.record import Epoch, EpochDone, Progress, RunDone, RunStarted, StepDone

VARIABLE = "GRADWIRE_EVENTS"
"""The environment variable that makes a job print its events as lines, and no report."""
MARK = "gradwire-event "
"""The prefix of each event on standard output, where libraries may also write."""


def is_watched() -> bool:
    """Return whether another process shows this job's progress and results."""
    return bool(os.environ.get(VARIABLE))


def line_of(event: Progress) -> str:
    """Return an event as a line.

    The end of a run is reported as its last step, because its result is in the record.
    """
    if isinstance(event, RunDone):
        event = StepDone(event.result.run, event.result.steps)
    values: dict[str, Any] = {"kind": type(event).__name__, "run": str(event.run)}
    match event:
        case RunStarted():
            values |= {"steps": event.steps, "epochs": event.epochs}
        case StepDone():
            values["step"] = event.step
        case EpochDone():
            values["epoch"] = asdict(event.epoch)
    return f"{MARK}{json.dumps(values)}\n"


def event_of(line: str) -> Progress | None:
    """Return the event of a line, or None if the line has no event."""
    if not line.startswith(MARK):
        return None
    values = json.loads(line.removeprefix(MARK))
    (run,) = parse_runs(values["run"])
    match values["kind"]:
        case "RunStarted":
            return RunStarted(run, values["steps"], values["epochs"])
        case "StepDone":
            return StepDone(run, values["step"])
    return EpochDone(run, Epoch(**values["epoch"]))
