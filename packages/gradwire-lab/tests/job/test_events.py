from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire_lab.job import display
from gradwire_lab.job.options import make_run
from gradwire_lab.job.record import Epoch, EpochDone, RunResult, RunStarted, StepDone

EPOCH = Epoch(epoch=1, accuracy=0.5, loss=0.25, train_s=3.0, step=10, held_out_loss=0.75)


def result(*epochs: Epoch, wire_nbytes: int = 400) -> RunResult:
    figures = {"compute_s": 0.1, "codec_s": 0.01, "exposed_s": 0.02, "weights_sha256": "ab"}
    return RunResult(make_run("sync"), 20, epochs, raw_nbytes=1000, wire_nbytes=wire_nbytes, **figures)  # type: ignore[arg-type]


def test_a_run_ends_as_its_last_epoch_does() -> None:
    found = result(EPOCH, replace(EPOCH, epoch=2, accuracy=0.875, train_s=5.0, step=20))
    assert (found.accuracy, found.train_s, found.step_s) == (0.875, 5.0, 0.25)
    assert found.ratio == 2.5


def test_a_run_that_sent_nothing_has_compressed_nothing() -> None:
    assert result(EPOCH, wire_nbytes=0).ratio == 1.0


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["loss", "held_out_loss"])
def test_one_loss_that_is_no_number_means_that_the_run_has_diverged(which: str, loss: float) -> None:
    bad = replace(EPOCH, **{which: loss})  # type: ignore[arg-type]
    assert bad.diverged
    assert not EPOCH.diverged
    assert result(bad, EPOCH).diverged, "at any time"
    assert not result(EPOCH, EPOCH).diverged


def test_other_lines_are_no_events() -> None:
    assert display.event_of("Downloading the data set\n") is None
    assert display.event_of("") is None


def test_an_event_is_the_same_after_its_way_as_a_line() -> None:
    run = make_run("server", "quantize:8,block=64", 2)
    for event in (
        RunStarted(run, 30, 3),
        StepDone(run, 7),
        EpochDone(run, EPOCH),
        EpochDone(run, replace(EPOCH, loss=math.inf)),
    ):
        line = display.line_of(event)
        assert line.count("\n") == 1
        assert display.event_of(line) == event
