"""Whatever ends a profile or a run, nothing of its script goes on and no gradients stay on the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.script import lifeline
from gradwire.script.lifeline import PREFIX, private_folder, remove_leftovers
from support.forks import Program

STUBBORN = """
import json, os, pathlib, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if len(sys.argv) < 3:
    subprocess.Popen([sys.executable, __file__, sys.argv[1], "inner"], start_new_session=True)
elif sys.argv[2] == "inner" and os.fork() == 0:
    sys.argv[2] = "fork"
folder = pathlib.Path(json.loads(os.environ["GRADWIRE_SCRIPT"])["folder"])
(folder / "gradients").write_bytes(bytes(1000))
pathlib.Path(sys.argv[1], f"{os.getpid()}").touch()
while True:
    time.sleep(0.01)
    pathlib.Path(sys.argv[1], f"{os.getpid()}").touch()
    try:
        (folder / "late").write_bytes(bytes(1000))
    except OSError:
        pass
"""
"""A script that ignores what it is told, its worker in a session of its own, and a fork of that."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "number"),
    [("profile", signal.SIGTERM), ("profile", signal.SIGKILL), ("run", signal.SIGKILL)],
)
def test_nothing_goes_on_and_nothing_stays(tmp_path: Path, temporary: Path, name: str, number: int) -> None:
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text(STUBBORN)
    seen.mkdir()
    command = [name, "--", sys.executable, str(script), str(seen)]
    program = Program(tmp_path / "log", tmp_path, {"TMPDIR": str(temporary)}, _start, command)
    try:
        _until(lambda: len(list(seen.iterdir())) == 3)
        (folder,) = temporary.glob(f"{PREFIX}*")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "gradients").exists()
        began = time.monotonic()
        os.kill(program._process.ident or 0, number)
        processes = [int(each.name) for each in seen.iterdir()]
        _until(lambda: not any(map(_runs, processes)))
        assert time.monotonic() - began < 12
        _until(lambda: not folder.exists())
    finally:
        program.stop()
        for each in seen.iterdir():
            if _runs(int(each.name)):
                os.kill(int(each.name), signal.SIGKILL)
    assert list(temporary.glob(f"{PREFIX}*")) == []


def _start(words: list[str]) -> int:
    tempfile.tempdir = os.environ["TMPDIR"]
    from gradwire.script import command as script

    script.GRACE_S = 0.5
    return main(words)


def _until(true: object) -> None:
    assert callable(true)
    deadline = time.monotonic() + 40
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_folder_of_a_killed_profiler_is_removed_by_the_next_and_one_in_use_stays(temporary: Path) -> None:
    for name, content in (("killed", b"on"), ("starting", b"")):
        (temporary / f"{PREFIX}{name}").mkdir()
        (temporary / f"{PREFIX}{name}" / "alive").write_bytes(content)
    (temporary / f"{PREFIX}strange").mkdir()
    (temporary / f"{PREFIX}half-removed.ended").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(temporary / f"{PREFIX}killed")
    with private_folder() as own:
        remove_leftovers()
        left = {each.name.removeprefix(PREFIX) for each in temporary.iterdir()}
        assert left == {"starting", "strange", "link", own.name.removeprefix(PREFIX)}
    assert not own.exists()


@pytest.mark.processes
@pytest.mark.usefixtures("temporary")
def test_a_process_that_outlives_a_profile_that_went_well_goes_on() -> None:
    code = "from pathlib import Path; from gradwire.script.lifeline import end_with_command; import sys\n"
    code += "end_with_command(Path(sys.argv[1])); print('watching', flush=True); input(); print('on')"
    with private_folder() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
    time.sleep(0.2)
    out, _ = process.communicate("\n", timeout=30)
    assert (out, process.returncode) == ("on\n", 0)


def test_a_folder_that_is_not_here_is_another_machine_s(tmp_path: Path) -> None:
    lifeline.end_with_command(tmp_path / "elsewhere")


def test_a_folder_whose_second_name_is_taken_is_removed_too(temporary: Path) -> None:
    with private_folder() as folder:
        (folder / "gradients").write_bytes(bytes(1000))
        taken = folder.with_name(f"{folder.name}.ended")
        taken.mkdir()
        (taken / "others").touch()
    assert [*temporary.iterdir()] == [taken]
    remove_leftovers()
    assert [*temporary.iterdir()] == []
