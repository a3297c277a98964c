from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.page import read_all
from support.fake_exhibit import squares
from support.recorded import BOTH, PIPE, STUDY, alter, record


def verdicts(folder: Path) -> list[str]:
    return [claim.verdict for each in read_all(folder, BOTH) for claim in each.judged.claims]


def test_what_is_there_is_judged_in_the_exhibits_order(tmp_path: Path) -> None:
    record(tmp_path, PIPE)
    (found,) = read_all(tmp_path, BOTH)
    assert found.judged.exhibit is PIPE
    record(tmp_path, STUDY)
    (tmp_path / "notes").mkdir()
    assert [each.judged.exhibit for each in read_all(tmp_path, BOTH)] == [STUDY, PIPE]
    assert found.fields["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("square", "verdict"), [(10, Verdict.REPRODUCED), (5, Verdict.EXPLAINED), (0, Verdict.NOT_REPRODUCED)]
)
def test_an_altered_row_alters_the_verdict(square: int, verdict: str, tmp_path: Path) -> None:
    alter(record(tmp_path), STUDY, lambda fields: [row.update(square=square) for row in fields["rows"]])
    assert verdicts(tmp_path) == [verdict, Verdict.REPRODUCED]


def test_an_unfinished_record_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, squares(breaks_after=1)[0])
    (found,) = read_all(tmp_path, BOTH)
    assert found.judged.claims == ()
    assert "unfinished" in found.judged.failure


def test_folders_without_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, reason in {
        "none": "none, which doesn't exist; pass an existing folder",
        "file": "file, which isn't a folder; pass an existing folder",
        "": "expected records of gradwire reproduce in .* such as study-table-i, got none; pass",
    }.items():
        with pytest.raises(JobError, match=reason):
            read_all(tmp_path / name, BOTH)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda fields: fields.update(schema="gradwire.train/1"), "is not a record of the experiment"),
        (
            lambda fields: fields.update(schema=older(fields, 0)),
            "from an older gradwire: expected the schema",
        ),
        (lambda fields: fields.update(schema=older(fields, 9)), "written by a newer gradwire"),
        (lambda fields: fields.update(rows=None), "expected a list of JSON objects as 'rows'"),
        (lambda fields: fields.pop("machine"), "expected a JSON object as 'machine'"),
        (
            lambda fields: [row.pop("square") for row in fields["rows"]],
            r"its rows can't be judged \(KeyError: 'square'\)",
        ),
        (lambda fields: fields["rows"].pop(), "lacks rows: expected 3 different rows, got 2"),
        (lambda fields: fields.update(rows=[]), "lacks rows: expected 3 different rows, got 0"),
    ],
)
def test_damaged_records_are_refused_with_their_path(
    change: Callable[[dict[str, Any]], object], reason: str, tmp_path: Path
) -> None:
    path = alter(record(tmp_path), PIPE, change)
    with pytest.raises(JobError, match=reason) as caught:
        read_all(tmp_path, BOTH)
    assert str(path) in str(caught.value)


def older(fields: dict[str, Any], version: int) -> str:
    return f"{fields['schema'].rpartition('/')[0]}/{version}"


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = alter(record(tmp_path), PIPE, lambda _fields: None)
    path.write_text("{")
    with pytest.raises(JobError, match=r"record.json is not valid JSON"):
        read_all(tmp_path, BOTH)
