"""The page of one experiment's record: its question, and the tables that answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.checksum import SUM, is_as_sealed
from gradwire.errors import JobError
from gradwire.experiments.experiment import Experiment
from gradwire.page import Part, Report, report_page


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
