import io

import pytest
from rich.console import Console

from gradwire.job import display
from gradwire.job.display import Bars, Lines, make_display
from gradwire.job.events import EpochDone, Progress, RunDone, RunResult, RunStarted, StepDone


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
        assert isinstance(lines, Lines)
        for event in events_of(results[2]):
            lines.show(event)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "D-Sync + quantize:8: epoch 2/3, top-1 75.00 %, loss 0.2500, 2.00 s"
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


def test_the_terminal_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    assert isinstance(display.make_display(), Bars)
