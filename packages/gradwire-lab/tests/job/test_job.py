"""The end of a job: its table is shown whatever becomes of its files, and an older result is not lost."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest

from gradwire.cli import main
from gradwire.errors import JobError
from gradwire.machine import TOPOLOGY
from gradwire_lab.job.job import perform_job
from gradwire_lab.job.options import FILES, JobOptions
from gradwire_lab.job.record import RunResult, job_record
from gradwire_lab.job.report import link_text
from gradwire_lab.testbed.topology import Topology


@pytest.fixture
def performed(
    options: JobOptions, results: tuple[RunResult, ...], monkeypatch: pytest.MonkeyPatch
) -> JobOptions:
    """Let a job have the made-up results without having trained."""
    monkeypatch.setattr("gradwire_lab.job.job.perform_local", lambda _options, _show: results)
    return options


def test_a_disk_that_is_full_at_the_end_costs_the_files_but_not_the_table(
    performed: JobOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)  # by which every file gets its name
    with pytest.raises(JobError) as caught:
        perform_job(performed)
    printed = capsys.readouterr().out
    assert all(run.label in printed for run in performed.runs)
    assert "No space left on device" in str(caught.value)
    assert "; record.json and training.png were not written; copy the job's results" in str(caught.value)
    assert not list(performed.out.iterdir())


def test_an_older_result_is_refused_before_anything_is_started(
    performed: JobOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    performed.out.mkdir()
    for name in FILES:
        (performed.out / name).write_text("of last week")
    words = ["train", "--runs", "sync", "--out", str(performed.out)]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "contains an older result (record.json and training.png); pass another folder, or" in printed.err
    assert [(performed.out / name).read_text() for name in FILES] == ["of last week"] * 2

    def joined(*_: object) -> tuple[RunResult, ...]:
        return ()

    monkeypatch.setattr("gradwire_lab.job.job.perform_joined", joined)
    for name, value in zip(("RANK", "WORLD_SIZE", "MASTER_ADDR"), ("1", "4", "127.0.0.1"), strict=True):
        monkeypatch.setenv(name, value)
    assert main(words) == 0, "a rank that writes nothing has nothing to refuse"


def test_an_older_result_may_be_overwritten(performed: JobOptions) -> None:
    performed.out.mkdir()
    (performed.out / FILES[0]).write_text("of last week")
    perform_job(replace(performed, overwrite=True))
    assert json.loads((performed.out / FILES[0]).read_text())["schema"] == "gradwire.train/2"


@pytest.mark.parametrize(
    ("topology", "link", "words"),
    [
        (None, "100mbit", "100mbit links"),
        (None, None, "unthrottled links"),
        (Topology.even(4, "1gbit"), None, "testbed links of 1gbit"),
        (Topology.even(4, "1gbit"), "100mbit", "100mbit links in a testbed of 1gbit"),
        (Topology((125e6, 12.5e6, None)), None, "testbed links of 100mbit to unlimited"),
        (
            Topology.even(4, "1gbit", groups=2, core="500mbit"),
            None,
            "testbed links of 1gbit, 500mbit between groups",
        ),
    ],
)
def test_links_are_called_what_they_are(
    options: JobOptions,
    results: tuple[RunResult, ...],
    monkeypatch: pytest.MonkeyPatch,
    topology: Topology | None,
    link: str | None,
    words: str,
) -> None:
    monkeypatch.delenv(TOPOLOGY, raising=False)
    described = None if topology is None else {"topology": topology.to_dict()}
    if described is not None:
        monkeypatch.setenv(TOPOLOGY, json.dumps(described))
    options = replace(options, link=link)
    assert link_text(options) == words
    assert job_record(options, results)["topology"] == described
