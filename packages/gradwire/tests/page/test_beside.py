from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gradwire.errors import JobError, SpecError
from gradwire.page import beside, check_record, check_results, keep, write_page


@pytest.mark.parametrize(
    ("record", "page"),
    [
        ("a/record.json", "a/report.html"),
        ("a/line.json", "a/line.html"),
        ("line", "line.html"),
        ("line.2.json", "line.2.html"),
        ("odd.html", "odd.html.html"),
    ],
)
def test_a_page_is_beside_its_record_and_never_in_its_place(record: str, page: str) -> None:
    assert beside(Path(record)) == Path(page)


def test_an_older_page_is_refused_unless_it_may_go(tmp_path: Path) -> None:
    record = tmp_path / "line.json"
    check_record("--json", record, overwrite=False)
    (tmp_path / "line.html").write_text("mine")
    with pytest.raises(
        JobError,
        match=r"^--json .*line.json would also write the page .*line\.html, which exists already; pass",
    ):
        check_record("--json", record, overwrite=False)
    check_record("--json", record, overwrite=True)


def test_another_result_replaces_neither_the_record_nor_its_page(tmp_path: Path) -> None:
    record = tmp_path / "a.json"
    check_results(record, "--save", tmp_path / "b.json", overwrite=False)
    check_results(None, "--save", record, overwrite=False)
    for name, what in (("a.json", "--json"), ("a.html", "the page of --json")):
        with pytest.raises(SpecError, match=rf"^expected two files for {what} and --save, got .*{name} twi"):
            check_results(record, "--save", tmp_path / "c" / ".." / name, overwrite=True)
    record.write_text("old")
    for own, other in ((record, None), (None, record)):
        with pytest.raises(JobError, match="already exists"):
            check_results(own, "--save", other, overwrite=False)


def test_a_page_that_cannot_be_made_or_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise ValueError("no font")

    (tmp_path / "file").touch()
    assert not write_page(tmp_path / "report.html", fail)
    assert not write_page(tmp_path / "file" / "report.html", lambda: "a")
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first.endswith("report.html was not written: no font")
    assert "cannot be written" in second
    assert printed.out == ""
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert write_page(tmp_path / "report.html", lambda: "a", quiet=True)
    assert write_page(tmp_path / "report.html", lambda: "b")
    assert not write_page(tmp_path / "line.html", fail)
    assert capsys.readouterr().out == f"the page is {tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").read_text() == "b"


def test_a_record_is_kept_with_its_page_which_shows_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plot = tmp_path / "run" / "record.json", tmp_path / "run" / "plot.png"
    keep(path, {"seconds": math.nan, "pair": (0, 1)}, lambda record: str(record), {plot: b"drawn"})
    assert json.loads(path.read_text()) == {"seconds": None, "pair": [0, 1]}
    assert (path.parent / "report.html").read_text() == "{'seconds': None, 'pair': [0, 1]}"
    assert plot.read_bytes() == b"drawn"
    assert capsys.readouterr().out == f"the page is {path.parent / 'report.html'}\n"


def test_a_record_whose_page_fails_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "record.json", {"a": 1}, lambda record: record["b"])
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]
    assert capsys.readouterr().err.endswith("report.html was not written: 'b'\n")
