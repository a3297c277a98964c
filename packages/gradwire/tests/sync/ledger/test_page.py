from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradwire.autotune.decision import Decision
from gradwire.costs import ExchangeCost
from gradwire.errors import JobError, StateError
from gradwire.plan import Plan
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.summary import page_of, read_summary
from support.ledgers import SMALL
from support.pages import Page


def filled(ledger: Ledger) -> Ledger:
    for _ in range(2):
        ledger.exchanged("bucket <1>", ExchangeCost(0.01, 0.01, 0.23, 0.25, 4_000_000, 1_000_000), 0.1)
        ledger.exchanged("the other", SMALL)
        ledger.end_step()
    ledger.bypassed("its gradient is sparse", "embedding", 999)
    ledger.decided(2, Decision(Plan.of("quantize:8"), 0.5, 1.25, 0.25, "quantize:8 over ring"))
    ledger.warned("watch out")
    return ledger


def saved(folder: Path) -> Any:
    return json.loads((folder / "record.json").read_text())


def test_the_record_gives_the_summary_and_the_page_has_all_of_it(tmp_path: Path) -> None:
    ledger = filled(Ledger(0))
    ledger.save(tmp_path)
    record = saved(tmp_path)
    assert str(read_summary(record)) == str(ledger.summary())
    html = (tmp_path / "report.html").read_text()
    page = Page(html)
    assert page_of(record) == html
    assert page.headings[0][1].startswith("gradwire, rank 0: 2 steps in")
    said, *others = ledger.summary().sentences()
    assert f"T{said[1:]}." in page.text
    assert all(each.strip() in page.text for each in others)
    assert [row[0] for row in page.rows[1:4]] == ["bucket <1>", "the other", "total"]
    assert html.count("<figure>") == 1


def test_a_ledger_with_a_folder_saves_itself_once_when_it_is_closed(tmp_path: Path) -> None:
    ledger = filled(Ledger(0, folder=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    ledger.close()
    assert saved(tmp_path / "run")["ledger"]["steps"] == 2
    (tmp_path / "run" / "record.json").unlink()
    ledger.close()
    assert not (tmp_path / "run" / "record.json").exists()
    filled(Ledger(1, folder=tmp_path / "other")).close()
    assert not (tmp_path / "other").exists(), "rank 0 alone saves"


def test_a_program_that_ends_without_closing_it_leaves_its_page(tmp_path: Path) -> None:
    code = f"from gradwire import Ledger; Ledger(0, folder={str(tmp_path)!r}).end_step()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert "1 step in" in Page((tmp_path / "report.html").read_text()).text


def test_a_folder_that_cannot_be_written_is_refused_at_once_and_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"a ledger's folder .* cannot be written"):
        Ledger(0, folder=tmp_path / "file" / "run")
    ledger = filled(Ledger(0, folder=tmp_path / "run"))
    (tmp_path / "run").touch()
    ledger.close()
    assert "the ledger was not saved: the results cannot be written" in caplog.text


def test_a_ledger_without_any_exchange_has_a_page(tmp_path: Path) -> None:
    Ledger(3).save(tmp_path)
    assert "no gradient bypassed the codec" in Page((tmp_path / "report.html").read_text()).text


def test_what_is_no_ledgers_state_is_refused(tmp_path: Path) -> None:
    filled(Ledger(0)).save(tmp_path)
    record = saved(tmp_path)
    record["ledger"]["ended"] = 3
    with pytest.raises(StateError):
        page_of(record)
