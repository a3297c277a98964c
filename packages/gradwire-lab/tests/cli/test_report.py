"""``gradwire report``: the file that it writes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import Ledger
from gradwire.cli import main
from gradwire.page import keep, kinds, pages_of
from gradwire.records import make_record
from gradwire_lab.cli import report
from gradwire_lab.experiments.papers import EXHIBITS, chosen
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
    assert "already exists; pass another file, or --overwrite" in capsys.readouterr().err
    assert main(["report", "--overwrite"]) == 0
    assert main(["report", "runs/reproduce-quick", "--html", "there/page.html"]) == 0
    assert Path("there/page.html").read_bytes() == (report.FOLDER / "report.html").read_bytes() == first


def test_two_processes_write_the_same_bytes() -> None:
    record(Path("runs"), *chosen("study-section-1-firecaffe"))
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "gradwire", "report", "runs", "--html", f"{seed}.html"]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONHASHSEED": seed})
    assert Path("1.html").read_bytes() == Path("2.html").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("missing", "got missing, which doesn't exist; pass an existing folder"),
        ("odd.json", "expected a record of gradwire.choice,"),
        ("newer.json", "newer.json was written by a newer gradwire: expected at most the schema"),
        ("torn.json", "expected a JSON object for torn.json, got invalid JSON"),
        (
            "bad.json",
            "bad.json is damaged, or from a different gradwire (KeyError: 'findings'); repeat the command",
        ),
        ("bytes.json", "bytes.json cannot be read"),
        ("empty", "expected records of gradwire reproduce in empty"),
        ("good --html good", "good is a folder; pass a file"),
        ("good --html=", "name a file"),
        ("damaged", "is not valid JSON"),
        ("good --quick", "expected an option of gradwire report, got --quick (did you mean '--quiet'?)"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    record(Path("good"))
    alter(record(Path("damaged")), BOTH[0], lambda _fields: None).write_text("no")
    Path("empty").mkdir()
    for name, text in {
        "odd": '{"schema": "gradwire.plan/1"}',
        "newer": '{"schema": "gradwire.doctor/99"}',
        "bad": '{"schema": "gradwire.doctor/1"}',
        "torn": '{"schema": ',
    }.items():
        Path(f"{name}.json").write_text(text)
    Path("bytes.json").write_bytes(b"\xff\xfe")
    assert main(["report", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_the_real_exhibits_are_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "EXHIBITS", EXHIBITS)
    record(Path("fake"))
    assert main(["report", "fake"]) == 2


def made(name: str, schema: str, **fields: object) -> Path:
    """Write a record as its command does, with the page beside it, and return its path."""
    path = Path(name) / "record.json"
    pages = pages_of(schema.rpartition("/")[0])
    assert pages is not None
    keep(path, make_record(schema, fields), pages[schema])
    return path


def test_the_page_of_any_record_is_rebuilt_byte_for_byte(capsys: pytest.CaptureFixture[str]) -> None:
    point = {"nbytes": 1, "time_s": 1e-4, "nbytes_per_s": 1e8, "duplex_nbytes_per_s": 5e7}
    line = {"latency_s": 1e-4, "nbytes_per_s": 1e8}
    where = {"topology": None, "options": {"link": None, "data": "laplace"}}
    row = {
        "world": 2,
        "algorithm": "ring",
        "codec": "fp8",
        "nbytes": 64,
        "segment_nbytes": 64,
        "seconds": [0.1],
        "wire_nbytes": [3, 3],
        "ratio": 2.0,
        "largest_error": 0.1,
        "allowed_error": None,
    }
    pair = {"ranks": [0, 1], "line": line, "points": [point]}
    epoch = {"epoch": 1, "accuracy": 1.0, "loss": 1.0, "train_s": 1.0, "step": 1, "held_out_loss": None}
    times = {"compute_s_per_step": 0.1, "codec_s_per_step": 0.1, "exposed_s_per_step": 0.1}
    run = {"run": "sync:fp8", "steps": 1, "epochs": [epoch], **times, "raw_nbytes": 1, "wire_nbytes": 1}
    job = {"topology": None, "options": {"link": None, "data": "digits", "model": "mlp", "workers": 2}}
    paths = [
        made("doctor", "gradwire.doctor/1", findings=[], ranks=[], clocks=[], lines=[]),
        made("line", "gradwire.line-rate/1", **where, line=line, machine_id="", pairs=[pair]),
        made("reduce", "gradwire.bench-allreduce/2", **where, line=line, results=[row]),
        made("train", "gradwire.train/2", **job, runs=[{**run, "weights_sha256": ""}]),
    ]
    Ledger(0).save("ledger")
    record(Path("study"), BOTH[0])
    for path in [*paths, Path("ledger/record.json")]:
        first = (path.parent / "report.html").read_bytes()
        assert main(["report", str(path.parent), "--overwrite"]) == 0
        assert (path.parent / "report.html").read_bytes() == first
        assert main(["report", str(path), "--html", "again.html", "--overwrite"]) == 0
        assert Path("again.html").read_bytes() == first
    assert main(["report", str(Path("study") / BOTH[0].name)]) == 0
    assert capsys.readouterr().err == ""
    page = Page((Path("study") / BOTH[0].name / "report.html").read_text())
    assert BOTH[0].experiment.question[1:] in page.text


def test_every_kind_has_a_page_of_its_schema() -> None:
    assert {"gradwire.train", "gradwire.bench-allreduce", "gradwire.codec-speeds"} < {*kinds()}
    for kind in kinds():
        assert kind in {schema.rpartition("/")[0] for schema in pages_of(kind) or ()}
    assert pages_of("gradwire.none") is None


def test_a_run_whose_page_fails_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert not report.write(Path("missing"))
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("gradwire: missing.html was not written: ")
