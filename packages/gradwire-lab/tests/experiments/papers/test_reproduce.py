"""Exhibits run once, go on after an interruption, and are judged by what their records hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire.checkpoints import SUM
from gradwire.errors import JobError, LinkError
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.page import page, read_all
from gradwire_lab.experiments.papers.reproduce import Judged, reproduce, seconds_in_words
from support.fake_exhibit import squares


def verdicts(judged: list[Judged]) -> list[list[Verdict]]:
    return [[claim.verdict for claim in each.claims] for each in judged]


def altered(folder: Path, **changed: object) -> None:
    """Change fields of a record, which loses its checksum."""
    path = folder / "record.json"
    record: dict[str, Any] = json.loads(path.read_text())
    record.pop(SUM, None)
    path.write_text(json.dumps(record | changed))


def test_each_gets_a_record_that_says_where_it_comes_from(tmp_path: Path) -> None:
    (first, _), (second, _) = squares(), squares("table II")
    said: list[str] = []
    judged = reproduce([first, second], tmp_path, said.append)
    assert verdicts(judged) == [[Verdict.REPRODUCED], [Verdict.REPRODUCED]]
    record = json.loads((tmp_path / "study-table-ii" / "record.json").read_text())
    assert record["schema"] == "gradwire.experiment-squares/1"
    assert {"machine", "versions", "commit", "options", "rows"} <= set(record)
    assert record["finished"] is True
    assert said[0].startswith("  study-table-i 1/3 number 2 square 4; about ")
    assert said[3].startswith("1/2 study-table-i done; about ")
    assert said[-1] == "2/2 study-table-ii done"


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    exhibit, made = squares(breaks_after=2)
    with pytest.raises(KeyboardInterrupt):
        reproduce([exhibit], tmp_path, lambda _text: None)
    exhibit, made = squares()
    assert verdicts(reproduce([exhibit], tmp_path, lambda _text: None)) == [[Verdict.REPRODUCED]]
    assert made.measured == [3]
    exhibit, made = squares()
    before = (tmp_path / "study-table-i" / "record.json").read_bytes()
    assert verdicts(reproduce([exhibit], tmp_path, lambda _text: None)) == [[Verdict.REPRODUCED]]
    assert made.measured == []
    assert (tmp_path / "study-table-i" / "record.json").read_bytes() == before
    assert verdicts(reproduce([exhibit], tmp_path, lambda _text: None, overwrite=True)) == [
        [Verdict.REPRODUCED]
    ]
    assert made.measured == [2, 1, 3]


@pytest.mark.parametrize(
    ("square", "verdict"),
    [(9, Verdict.REPRODUCED), (8, Verdict.EXPLAINED), (3, Verdict.NOT_REPRODUCED)],
)
def test_altered_data_changes_the_verdict(tmp_path: Path, square: float, verdict: Verdict) -> None:
    exhibit, _ = squares()
    reproduce([exhibit], tmp_path, lambda _text: None)
    altered(
        tmp_path / "study-table-i",
        rows=[{"number": n, "square": s} for n, s in ((3, square), (1, 1), (2, 2))],
    )
    assert verdicts(reproduce([exhibit], tmp_path, lambda _text: None)) == [[verdict]]


def test_the_full_run_has_its_own_options(tmp_path: Path) -> None:
    exhibit, made = squares()
    reproduce([exhibit], tmp_path, lambda _text: None, full=True)
    assert made.measured == [2, 1, 3, 4]
    with pytest.raises(
        JobError, match=r"holds a finished record that differs in options \(numbers was \[4, 3"
    ):
        reproduce([exhibit], tmp_path, lambda _text: None)


def test_a_row_that_was_altered_by_hand_is_refused(tmp_path: Path) -> None:
    exhibit, _ = squares()
    reproduce([exhibit], tmp_path, lambda _text: None)
    path = tmp_path / "study-table-i" / "record.json"
    path.write_text(path.read_text().replace('"square": 9', '"square": 99'))
    with pytest.raises(JobError, match=r"was altered after it was written: expected the checksum \d+"):
        reproduce([exhibit], tmp_path, lambda _text: None)
    with pytest.raises(JobError, match="was altered after it was written"):
        read_all(tmp_path, [exhibit])


def test_a_record_of_another_commit_goes_on_where_that_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce([squares(breaks_after=2)[0]], tmp_path, lambda _text: None)
    folder = tmp_path / "study-table-i"
    altered(folder, commit="abc")
    exhibit, made = squares()
    with pytest.raises(JobError, match=r"repeat with the recorded commit to continue, pass --across-commits"):
        reproduce([exhibit], tmp_path, lambda _text: None)
    for _ in range(2):  # a finished one counts, too
        reproduce([exhibit], tmp_path, lambda _text: None, across_commits=True)
        assert made.measured == [3]
    record = json.loads((folder / "record.json").read_text())
    assert record["commits"] == {"abc": 2, record["commit"]: 1}
    assert "rows by commit" in page(read_all(tmp_path, [exhibit]), [exhibit], {"study": "a study"})


def test_seconds_are_summed_over_the_runs(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce([squares(breaks_after=2)[0]], tmp_path, lambda _text: None)
    altered(tmp_path / "study-table-i", measured_s=100.0)
    exhibit, _ = squares()
    judged = reproduce([exhibit, squares("table II")[0]], tmp_path, lambda _text: None)
    assert judged[0].measured_s == pytest.approx(100, abs=20)
    assert [each.expected_s for each in judged] == [3, 3]
    assert seconds_in_words(judged[:1]) == "Measuring took about 2 min; the budget is about 3 s."
    older = Judged(exhibit)
    assert seconds_in_words([older]) == ""
    assert seconds_in_words([judged[0], older]).startswith("Measuring of 1 of 2 tables and figures took ")
    recorded = read_all(tmp_path, [exhibit])
    assert seconds_in_words([each.judged for each in recorded]) == seconds_in_words(judged[:1])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"commit": "abc"}, r"a finished record that differs in commit \(abc instead of"),
        ({"machine": {"cores": 96}}, r"a finished record that differs in machine \(cores was 96"),
        ({"schema": "gradwire.train/1"}, "expected the schema gradwire.experiment-squares/1"),
    ],
)
def test_another_result_is_told_before_anything_is_measured(
    tmp_path: Path, changed: dict[str, object], reason: str
) -> None:
    (first, _), (second, _) = squares(), squares("table II")
    reproduce([second], tmp_path, lambda _text: None)
    altered(tmp_path / "study-table-ii", **changed)
    first, made = squares()
    with pytest.raises(JobError, match=reason):
        reproduce([first, second], tmp_path, lambda _text: None)
    assert made.measured == []


def test_one_that_fails_does_not_keep_the_others_from_running(tmp_path: Path) -> None:
    (first, _), (second, _) = squares(breaks_after=0, error=LinkError("a host is gone")), squares("table II")
    said: list[str] = []
    judged = reproduce([first, second], tmp_path, said.append)
    assert [each.failure for each in judged] == ["a host is gone", ""]
    assert verdicts(judged) == [[], [Verdict.REPRODUCED]]
    assert any(line.startswith("1/2 study-table-i failed: a host is gone; about ") for line in said)
