"""``gradwire report``: the file that it writes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.cli import main, report
from gradwire.experiments.papers import EXHIBITS, chosen
from support.pages import Page
from support.recorded import BOTH, TITLES, alter, record


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "EXHIBITS", BOTH)
    monkeypatch.setattr(report, "PAPERS", TITLES)


def test_the_page_is_beside_the_records_and_replaced_only_on_demand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record(report.FOLDER)
    assert main(["report"]) == 0
    assert capsys.readouterr().out == "the page is runs/reproduce-quick/report.html\n"
    first = (report.FOLDER / "report.html").read_bytes()
    assert "2 reproduced" in Page(first.decode()).text
    assert main(["report"]) == 2
    assert "exists already; name another file, or say --overwrite" in capsys.readouterr().err
    assert main(["report", "--overwrite"]) == 0
    assert main(["report", "runs/reproduce-quick", "--out", "there/page.html"]) == 0
    assert Path("there/page.html").read_bytes() == (report.FOLDER / "report.html").read_bytes() == first


def test_two_processes_write_the_same_bytes() -> None:
    record(Path("runs"), *chosen("study-section-1-firecaffe"))
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "gradwire", "report", "runs", "--out", f"{seed}.html"]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONHASHSEED": seed})
    assert Path("1.html").read_bytes() == Path("2.html").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("missing", "missing, doesn't exist; name the --out of a gradwire reproduce"),
        ("empty", "empty holds no records of gradwire reproduce"),
        ("good --out good", "good is a folder; name a file"),
        ("good --out=", "name a file"),
        ("damaged", "is no JSON"),
        ("good --quick", "unrecognized arguments: --quick"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    record(Path("good"))
    alter(record(Path("damaged")), BOTH[0], lambda _fields: None).write_text("no")
    Path("empty").mkdir()
    assert main(["report", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_the_real_exhibits_are_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "EXHIBITS", EXHIBITS)
    record(Path("fake"))
    assert main(["report", "fake"]) == 2
