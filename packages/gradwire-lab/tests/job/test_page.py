from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from gradwire.machine import TOPOLOGY
from gradwire.records import to_json
from gradwire_lab.job.job import in_words, page_of
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.record import RunResult, job_record
from support.pages import Page


@pytest.fixture(autouse=True)
def _no_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPOLOGY, raising=False)


def record_of(options: JobOptions, results: tuple[RunResult, ...]) -> Any:
    return json.loads(to_json(job_record(options, results)))


def test_the_comparison_is_first_and_every_run_evaluation_and_plot_is_there(
    options: JobOptions, on_ddp: tuple[RunResult, ...]
) -> None:
    html = page_of(record_of(options, on_ddp))
    page = Page(html)
    said = (
        "attach + fp8 is 4.0 times as fast as DDP and 2.0 times as fast as DDP + bf16 hook, to the same "
        "held-out loss (0.5000)."
    )
    assert html.index(said) < html.index("<table")
    assert page.headings[0] == (1, "digits, mlp: 4 workers, 100mbit links")
    labels = [result.run.label for result in on_ddp]
    assert [row[0] for row in page.rows[1:5]] == labels
    assert html.count("<figure>") == 3
    evaluations = [row for row in page.rows if row[0] == "Pipe-SGD + fp8" and len(row) == 7]
    assert evaluations[2] == ["Pipe-SGD + fp8", "3", "30", "2.40", "0.1250", "0.2500", "87.50"]
    assert "What auto decided" not in page.text


def test_what_auto_decided_has_a_table(options: JobOptions, on_ddp: tuple[RunResult, ...]) -> None:
    chosen = replace(on_ddp[3], decided=((4, "from <b>step</b> 4 on"),))
    page = Page(page_of(record_of(options, (*on_ddp[:3], chosen))))
    assert ["Pipe-SGD + fp8", "4", "from <b>step</b> 4 on"] in page.rows


def test_the_same_record_gives_the_same_bytes_wherever_it_is_read(
    options: JobOptions, on_ddp: tuple[RunResult, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(options, on_ddp)
    first = page_of(record)
    monkeypatch.setenv(TOPOLOGY, "another network")
    assert page_of(record) == first


def test_runs_without_a_baseline_are_judged_by_what_they_learnt(on_ddp: tuple[RunResult, ...]) -> None:
    attach, pipe = on_ddp[2:]
    said = "Pipe-SGD + fp8 reached 87.5 % accuracy on the test set after 30 steps in 2.4s"
    assert in_words((pipe,)) == f"{said}, with 4.0x fewer bytes on the wire"
    assert in_words((attach, pipe)).startswith("Pipe-SGD + fp8 was the fastest: it reached 87.5 %")
    lost = replace(pipe, epochs=(replace(pipe.epochs[0], loss=math.nan),))
    assert in_words((attach, lost)).endswith("on the wire; Pipe-SGD + fp8 diverged")
    assert in_words((lost,)) == "All runs diverged: their losses aren't finite"


def test_a_run_with_losses_that_are_no_numbers_has_a_page(
    options: JobOptions, on_ddp: tuple[RunResult, ...]
) -> None:
    lost = replace(on_ddp[0], epochs=(replace(on_ddp[0].epochs[0], loss=math.nan, held_out_loss=math.inf),))
    assert "All runs diverged" in Page(page_of(record_of(options, (lost,)))).text


def test_a_fastest_run_that_saves_no_bytes_is_not_said_to(on_ddp: tuple[RunResult, ...]) -> None:
    ddp, *_, attach = (replace(each, epochs=each.epochs[-1:]) for each in on_ddp[:3])
    slow = replace(attach, epochs=(replace(attach.epochs[0], train_s=100.0),))
    said = in_words((ddp, slow))
    assert said.startswith(
        "DDP was the fastest: it reached 87.5 % accuracy on the test set after 30 steps in "
    )
    assert ", with no fewer bytes on the wire. DDP was evaluated 1 time, and times to equal loss" in said
    assert "1.0x" not in said
