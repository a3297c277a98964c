import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from gradwire_lab.job import launch as display
from gradwire_lab.job.launch import Bars, Display, EpochLines, make_display
from gradwire_lab.job.record import EpochDone, Progress, RunDone, RunResult, RunStarted, StepDone


def events_of(result: RunResult) -> list[Progress]:
    return [
        RunStarted(result.run, 30, 3),
        StepDone(result.run, 5),
        *(EpochDone(result.run, epoch) for epoch in result.epochs),
        RunDone(result),
    ]


def test_elsewhere_every_epoch_is_a_line(
    results: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with make_display() as lines:
        assert isinstance(lines, EpochLines)
        for event in events_of(results[2]):
            lines.show(event)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == (
        "D-Sync + quantize:8: epoch 2/3, step 20, top-1 75.00 %, loss 0.2500, held-out loss 0.5000, 2.00 s"
    )
    assert len(printed) == 3


def test_on_a_terminal_every_run_is_a_bar(
    results: tuple[RunResult, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "rich.progress.get_console", lambda: Console(file=screen, force_terminal=True, width=120)
    )
    with Bars() as bars:
        for result in results[:2]:
            for event in events_of(result):
                bars.show(event)
    shown = screen.getvalue()
    assert "PS-Sync" in shown
    assert "D-Sync" in shown
    assert "30/30" in shown
    assert "top-1 87.50 %" in shown


@pytest.mark.parametrize("kind", [EpochLines, Bars])
def test_a_run_that_diverges_says_so_once(
    kind: type[Display],
    results: tuple[RunResult, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("rich.progress.get_console", lambda: Console(force_terminal=True, width=60))
    with kind() as shown:
        for result, losses in zip(
            results, ((1.0, 2.0), (1.0, math.nan, math.nan), (math.inf,)), strict=False
        ):
            for number, loss in enumerate(losses, start=1):
                shown.show(EpochDone(result.run, replace(result.epochs[0], epoch=number, loss=loss)))
    printed = capsys.readouterr().out
    assert printed.count("the loss is no longer finite") == 2
    assert "D-Sync: the loss is no longer finite in epoch 2, so this run has diverged; try" in printed
    assert "D-Sync + quantize:8: the loss is no longer finite in epoch 1, so this run has diverged" in printed


def test_the_terminal_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    assert isinstance(display.make_display(), Bars)
