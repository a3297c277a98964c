"""Read the records in a folder of ``gradwire reproduce``, and judge each anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.errors import GradwireError, JobError, SpecError
from gradwire.experiments.papers.exhibit import Exhibit
from gradwire.experiments.papers.reproduce import Judged, judge
from gradwire.experiments.record import RECORD, read_fields

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
