from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest

from gradwire.errors import JobError
from gradwire.script.command import run_script
from gradwire.script.entry import VARIABLE, Entry


def entry(folder: Path) -> Entry:
    return Entry(str(folder), "nothing:at_all", "")


def test_a_script_has_the_variables_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    text = f'test -n "${VARIABLE}" && echo "$PYTHONPATH" > {tmp_path}/path; exit 3'
    assert run_script(["sh", "-c", text], entry(tmp_path)) == 3
    assert "script/start" in (tmp_path / "path").read_text(encoding="utf-8")


def test_a_command_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="/no/such/program cannot be started: No such file"):
        run_script(["/no/such/program"], entry(tmp_path))


def test_the_script_ends_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Popen[bytes]] = []

    def interrupted(process: Popen[bytes], timeout: float | None = None) -> int:
        if not started:
            started.append(process)
            raise KeyboardInterrupt
        return waits(process, timeout)

    waits = Popen.wait
    monkeypatch.setattr(Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_script([sys.executable, "-S", "-c", "import time; time.sleep(100)"], entry(tmp_path))
    assert started[0].returncode == -15


def test_the_exit_code_of_a_signal_is_the_shell_s(tmp_path: Path) -> None:
    assert run_script(["sh", "-c", "kill -KILL $$"], entry(tmp_path)) == 128 + signal.SIGKILL


CLEANING = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def clean(number, frame):
    time.sleep(0.2)
    (folder / "cleaned").write_text(str(number))
    sys.exit(5)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, clean)
(folder / "ready").touch()
time.sleep(100)
"""
"""A script that cleans up after a signal."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_script_takes_its_time(tmp_path: Path, number: int) -> None:
    kill = f"until test -e {tmp_path}/ready; do sleep 0.02; done; kill -{number} {os.getpid()}"
    sender = subprocess.Popen(["sh", "-c", kill])
    before = signal.getsignal(number)
    code = run_script([sys.executable, "-S", "-c", CLEANING, str(tmp_path)], entry(tmp_path), [number])
    assert sender.wait() == 0
    assert code == 5
    assert (tmp_path / "cleaned").read_text(encoding="utf-8") == str(int(number))
    assert signal.getsignal(number) is before


def test_a_signal_that_nohup_ignores_is_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        text = f"kill -HUP {os.getpid()}; kill -HUP $$; exit 3"
        assert run_script(["sh", "-c", text], entry(tmp_path), [signal.SIGHUP]) == 3
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_the_start_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Popen.__init__

    def slow(process: Popen[bytes], command: list[str], **options: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        started(process, command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Popen, "__init__", slow)
    began = time.monotonic()
    assert run_script(["sleep", "100"], entry(tmp_path), [signal.SIGTERM]) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 50
