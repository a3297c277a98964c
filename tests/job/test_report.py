import re

import pytest

from gradwire.job.events import RunResult
from gradwire.job.options import JobOptions
from gradwire.job.report import rows, show_report


def test_rows_have_milliseconds_megabytes_and_speed_ups(results: tuple[RunResult, ...]) -> None:
    assert rows(results)[0] == (
        "PS-Sync", "87.50", "800.0", "200.0", "0.0", "400.0", "1.00", "1.0x", "1.0x", "0.2x",
    )  # fmt: skip
    assert rows(results)[3][-4:] == ("0.25", "4.0x", "16.0x", "4.0x")
    assert rows(results[3:])[0][-2:] == ("-", "-")


def test_the_table_fits_a_terminal_of_80_columns(
    options: JobOptions,
    results: tuple[RunResult, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_report(options, results)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "digits, mlp: 4 workers, 100mbit links, 30 steps"
    assert any(line.split()[:3] == ["PS-Sync", "87.50", "800.0"] for line in lines)
    assert any("Pipe-SGD + quantize:8" in line for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_a_narrow_terminal_folds_the_names_and_drops_nothing(
    options: JobOptions,
    results: tuple[RunResult, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    show_report(options, results)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 60
    names = "".join(re.sub(r"\s+[\d.-].*", "", line.strip()).replace(" ", "") for line in lines)
    assert "".join(result.run.label.replace(" ", "") for result in results) in names
