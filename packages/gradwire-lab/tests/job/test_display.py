import io
import math
import time
from dataclasses import replace

import pytest
from rich.console import Console

from gradwire_lab.job import display
from gradwire_lab.job.display import Bars, Display, EventLines, ProgressLines, make_display
from gradwire_lab.job.record import EpochDone, Progress, RunDone, RunResult, RunStarted, StepDone


def events_of(result: RunResult) -> list[Progress]:
    return [
        RunStarted(result.run, 30, 3),
        StepDone(result.run, 5),
        *(EpochDone(result.run, epoch) for epoch in result.epochs),
        RunDone(result),
    ]


def test_elsewhere_a_run_has_a_line_at_its_end(
    results: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with make_display() as lines:
        assert isinstance(lines, ProgressLines)
        for result in results:
            for event in events_of(result):
                lines.show(event)
    printed = capsys.readouterr().out.splitlines()
    assert printed[2] == "D-Sync + quantize:8: step 30/30, loss 0.2500, top-1 87.5 %, 0 s"
    assert len(printed) == len(results)
    assert max(map(len, printed)) <= 80


def test_lines_tell_that_a_job_is_alive_and_are_few(
    results: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressLines(every_s=0.2) as lines:
        time.sleep(0.5)  # before the first event, as while the ranks start
        for event in events_of(results[0])[:2]:
            lines.show(event)
        for _ in range(50):
            lines.show(StepDone(results[0].run, 7))
        time.sleep(0.5)  # in a long step
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "starting, 0 s"
    assert printed[-1] == "PS-Sync: step 7/30, 1 s"
    assert 3 <= len(printed) <= 6


def test_the_place_precedes_the_names_of_runs(
    results: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ProgressLines()
    lines.place = "100mbit, "
    for event in events_of(results[0]):
        lines.show(event)
    assert capsys.readouterr().out.startswith("100mbit, PS-Sync: step 30/30")


def test_a_watched_job_prints_its_events(
    results: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(display.VARIABLE, "1")
    told = events_of(results[2])
    with make_display() as lines:
        for event in told:
            lines.show(event)
    printed = capsys.readouterr().out.splitlines(keepends=True)
    end = StepDone(results[2].run, 30)
    assert [display.event_of(line) for line in printed] == [*told[:-1], end]


def test_quiet_shows_only_warnings(
    results: tuple[RunResult, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with make_display(quiet=True) as display:
        for event in events_of(results[2]):
            display.show(event)
        assert capsys.readouterr() == ("", "")
        display.show(EpochDone(results[2].run, replace(results[2].epochs[-1], loss=math.nan)))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert results[2].run.label in err


def test_on_a_terminal_every_run_is_a_bar(
    results: tuple[RunResult, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "rich.progress.get_console", lambda: Console(file=screen, force_terminal=True, width=80)
    )
    with Bars() as bars:
        assert "starting" in screen.getvalue()
        for result in results[:2]:
            for event in events_of(result):
                bars.show(event)
    shown = screen.getvalue()
    assert "PS-Sync" in shown
    assert "D-Sync" in shown
    assert "30/30" in shown
    assert "loss 0.2500, top-1 87.5 %" in shown


@pytest.mark.parametrize("kind", [ProgressLines, EventLines, Bars])
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


def test_a_reader_who_leaves_ends_the_job_at_its_next_event(
    results: tuple[RunResult, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with ProgressLines(every_s=0.05) as lines:
        time.sleep(0.3)
        with pytest.raises(BrokenPipeError):
            lines.show(StepDone(results[0].run, 7))
