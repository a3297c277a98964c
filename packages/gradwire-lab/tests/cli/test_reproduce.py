"""``gradwire reproduce``: what it runs, prints, and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.errors import LinkError
from gradwire_lab.cli import report, reproduce
from gradwire_lab.experiments.papers import EXHIBITS
from support.fake_exhibit import squares


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_list_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(each.name in printed for each in EXHIBITS)


def test_a_signal_says_where_what_was_measured_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_given: object, **_options: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(reproduce, "reproduce", ended)
    assert main(["reproduce", "study"]) == 143
    said = capsys.readouterr().err
    assert "the measurements so far are in runs/reproduce-quick; repeat" in said
    assert "ended by SIGTERM" in said


def test_a_paper_is_run_and_judged_and_goes_on_from_its_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exhibit, made = squares(breaks_after=1)
    monkeypatch.setattr(reproduce, "chosen", lambda _name: [exhibit])
    monkeypatch.setattr(report, "EXHIBITS", (exhibit,))
    assert main(["reproduce", "study"]) == 130
    assert "the measurements so far are in runs/reproduce-quick; repeat" in capsys.readouterr().err
    exhibit, made = squares()
    assert main(["reproduce", "study"]) == 0
    assert made.measured == [1, 3]
    printed = capsys.readouterr().out
    assert "\n1 reproduced\n" in printed
    assert printed.endswith(
        "\nMeasuring took about 0 s; the budget is about 3 s.\n"
        "the records are in runs/reproduce-quick\nthe page is runs/reproduce-quick/report.html\n"
    )
    assert "1 reproduced" in Path("runs/reproduce-quick/report.html").read_text()
    record = json.loads(Path("runs/reproduce-quick/study-table-i/record.json").read_text())
    assert record["finished"] is True
    assert main(["reproduce", "--full", "--out", "here"]) == 0
    assert len(json.loads(Path("here/study-table-i/record.json").read_text())["rows"]) == 4


def test_what_could_not_be_run_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exhibit, _ = squares(breaks_after=1, error=LinkError("a host is gone"))
    monkeypatch.setattr(reproduce, "chosen", lambda _name: [exhibit])
    monkeypatch.setattr(report, "EXHIBITS", (exhibit,))
    assert main(["reproduce"]) == 2
    printed = capsys.readouterr()
    assert "table I was not run: a host is gone" in printed.out
    assert "the record is unfinished" in Path("runs/reproduce-quick/report.html").read_text()
    assert printed.err == (
        "gradwire: 1 of 1 exhibits failed (study-table-i); fix the errors above, and repeat the command\n"
    )


def test_a_figure_of_dead_trainings_comes_first_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dead, alive = squares("figure 12", accuracy=0.15)[0], squares()[0]
    monkeypatch.setattr(reproduce, "chosen", lambda _name: [alive, dead])
    monkeypatch.setattr(report, "EXHIBITS", (alive, dead))
    assert main(["reproduce"]) == 1
    printed = capsys.readouterr()
    assert "\n1 did not learn, 1 reproduced\n" in printed.out
    rows = [line.split() for line in printed.out.splitlines()]
    places = [row[:2] for row in rows if row[:1] in (["did"], ["reproduced"])]
    assert places == [["did", "not"], ["reproduced", "table"]]
    assert "ends at 0.150 ± 0.000, below 0.780" in " ".join(printed.out.split())
    assert printed.err.startswith(
        "gradwire: 1 of the figures are invalid, such as study-figure-12, largest: "
    )
    assert printed.err.count("\n") == 1


def test_a_folder_whose_page_can_not_be_written_keeps_the_verdicts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exhibit, _ = squares()
    monkeypatch.setattr(reproduce, "chosen", lambda _name: [exhibit])  # which is none of EXHIBITS
    assert main(["reproduce"]) == 0
    printed = capsys.readouterr()
    assert "\n1 reproduced\n" in printed.out
    assert printed.err.startswith(
        "gradwire: runs/reproduce-quick/report.html was not written: expected records"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("alexnet", "expected a paper (study, "),
        ("study --quick --full", "not allowed with argument --quick"),
        ("study --speed", "expected an option of gradwire reproduce, got --speed"),
        ("study --out=", "name a folder"),
        ("study --out file/out", "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["reproduce", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
