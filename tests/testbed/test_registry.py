from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from gradwire import errors
from gradwire.testbed.leftovers import clean
from gradwire.testbed.registry import MARK, dead_and_living, enter, forget, registry_folder
from support.beds import SOURCE

HOLDER = """
import sys
from gradwire.testbed.registry import enter
print(enter().path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_testbed(folder: Path) -> Path:
    """Return the entry of a testbed that was killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    entry = Path(holder.stdout.readline().strip())
    assert dead_and_living() == ([], [entry])
    holder.kill()
    holder.communicate()
    return entry


def marked(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark})


def test_an_entry_lives_as_long_as_its_testbed(folder: Path) -> None:
    entry = enter()
    assert dead_and_living() == ([], [entry.path])
    assert clean() == ["nothing is left behind", f"left alone: {entry.path}, whose testbed is at work"]
    entry.leave()
    assert dead_and_living() == ([], [])
    assert not list(folder.iterdir())


def test_forgetting_twice_does_no_harm(folder: Path) -> None:
    entry = enter()
    forget(entry.path)
    entry.leave()
    assert not list(folder.iterdir())


def test_the_folder_stays_for_the_others() -> None:
    one, other = enter(), enter()
    assert one.mark != other.mark
    one.leave()
    assert dead_and_living() == ([], [other.path])
    other.leave()


def test_many_come_and_go_at_once(folder: Path) -> None:
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(30):
                enter().leave()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not list(folder.iterdir())


def test_clean_ends_what_a_killed_testbed_left_and_nothing_else(folder: Path) -> None:
    entry = killed_testbed(folder)
    living = enter()
    left, foreign, nobodys = marked(entry.stem), marked(living.mark), marked(entry.stem[:-1])
    try:
        os.kill(left.pid, signal.SIGSTOP)
        assert clean() == [
            f"ended process {left.pid}, sleep 60",
            f"removed {entry}",
            f"left alone: {living.path}, whose testbed is at work",
        ]
        assert left.wait(10) == -signal.SIGKILL
        assert foreign.poll() is None
        assert nobodys.poll() is None
    finally:
        for process in (left, foreign, nobodys):
            process.kill()
            process.wait()
    living.leave()
    assert clean() == ["nothing is left behind"]
    assert not list(folder.iterdir())


def test_what_has_a_strange_name_is_not_ours() -> None:
    entry = enter()
    stranger = registry_folder() / "notes.txt"
    stranger.touch()
    entry.leave()
    assert clean() == ["nothing is left behind"]
    assert stranger.exists()


def test_a_folder_that_others_may_write_is_refused() -> None:
    registry_folder().mkdir()
    registry_folder().chmod(0o777)
    with pytest.raises(errors.TestbedError, match="this user's alone"):
        enter()
    with pytest.raises(errors.TestbedError, match="this user's alone"):
        clean()


def test_a_link_in_its_place_is_not_followed(folder: Path) -> None:
    (folder / "elsewhere").mkdir(mode=0o700)
    registry_folder().symlink_to(folder / "elsewhere")
    with pytest.raises(errors.TestbedError, match=r"cannot be written .*; set TMPDIR"):
        enter()
    assert not list((folder / "elsewhere").iterdir())


def test_nothing_is_cleaned_while_somebody_enters(folder: Path) -> None:
    entry = killed_testbed(folder)
    done: list[list[str]] = []
    descriptor = os.open(registry_folder(), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        thread = threading.Thread(target=lambda: done.append(clean()))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert entry.exists()
    finally:
        os.close(descriptor)
    thread.join(10)
    assert done == [[f"removed {entry}"]]
