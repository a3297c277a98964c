"""The command around a script: its exit code, the result, and the end of its processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError
from gradwire.run import run
from gradwire.run.outcome import ModelOutcome, RunOutcome
from gradwire.run.run import RunOptions, run_attached
from gradwire.run.settings import RunSettings
from gradwire.script.entry import Entry

REFUSED = RunOutcome((ModelOutcome("DDP 'GPT'", "the script attaches gradwire itself"),))
Leave = Callable[[RunSettings], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Leave, int], None]:
    """Let the script be a function of the settings, with an exit code."""

    def play(leave: Leave, code: int) -> None:
        def run_script(_command: tuple[str, ...], entry: Entry, passed_on: tuple[int, ...]) -> int:
            assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= {*passed_on}
            leave(RunSettings.of_text(entry.settings))
            return code

        monkeypatch.setattr(run, "run_script", run_script)

    return play


def test_the_result_is_written_and_the_exit_code_is_the_script_s(
    play: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(lambda settings: REFUSED.save(settings.outcome), 3)
    assert run_attached(RunOptions(("train",), tmp_path / "out", "fp8", compare=True, steps=9)) == 3
    record = json.loads((tmp_path / "out" / "record.json").read_text(encoding="utf-8"))
    assert record["exit_code"] == 3
    assert record["options"]["command"] == ["train"]
    assert (record["options"]["plan"], record["options"]["cycles"]) == ("fp8", 3)
    assert "the script attaches" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    out, err = capsys.readouterr()
    assert out == "", "standard output is the script's"
    assert "Not attached to DDP 'GPT'" in err
    assert str(tmp_path / "out" / "report.html") in err


def test_another_machine_prints_and_writes_nothing(
    play: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(lambda settings: settings.elsewhere.touch(), 0)
    assert run_attached(RunOptions(("train",), out=tmp_path / "out")) == 0
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "out").exists()


def test_a_script_without_a_model_is_told_so(
    play: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(lambda _settings: None, 4)
    assert run_attached(RunOptions(("train",), out=tmp_path / "out")) == 4
    assert "not attached, because the script created no" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_quiet_prints_nothing(
    play: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(lambda settings: REFUSED.save(settings.outcome), 0)
    assert run_attached(RunOptions(("train",), out=tmp_path, quiet=True)) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "record.json").exists()


@pytest.mark.parametrize(("code", "fails"), [(0, True), (7, False)])
def test_strict_fails_if_nothing_is_attached(
    play: Callable[..., None], tmp_path: Path, code: int, fails: bool
) -> None:
    def leave(settings: RunSettings) -> None:
        assert settings.strict
        REFUSED.save(settings.outcome)

    play(leave, code)
    options = RunOptions(("train",), strict=True, out=tmp_path, quiet=True)
    if fails:
        with pytest.raises(JobError, match="--strict: gradwire could not be attached to any model; see"):
            run_attached(options)
    else:
        assert run_attached(options) == code, "the script's own failure counts"


@pytest.mark.parametrize(("steps", "cycles"), [(20, 5), (12, 3), (13, 4)])
def test_steps_are_counted_in_rounds(steps: int, cycles: int) -> None:
    options: Any = {"steps": steps}
    assert RunOptions(("x",), Path("out"), compare=True, **options).cycles == cycles
    assert RunOptions(("x",), Path("out"), **options).cycles == 0
