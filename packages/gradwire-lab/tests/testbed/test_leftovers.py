"""What killed testbeds left behind is ended and removed, and nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from gradwire_lab.testbed.registry import MARK, clean, dead_and_living, enter, registry_folder
from support.project import SOURCES

HOLDER = """
import sys
from gradwire_lab.testbed.registry import enter
print(enter().path, flush=True)
sys.stdin.read()
"""


def killed_testbed(folder: Path) -> Path:
    """Return the entry of a testbed that was killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": SOURCES},
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


def test_clean_ends_what_a_killed_testbed_left_and_nothing_else(folder: Path) -> None:
    entry = killed_testbed(folder)
    living = enter()
    left, *others = (marked(mark) for mark in (entry.stem, living.mark, entry.stem[:-1], f"{entry.stem}0"))
    try:
        os.kill(left.pid, signal.SIGSTOP)
        assert clean() == [
            f"ended process {left.pid}, sleep 60",
            f"removed {entry}",
            f"kept: {living.path}, whose testbed is running",
        ]
        assert left.wait(10) == -signal.SIGKILL
        assert [other.poll() for other in others] == [None] * 3
    finally:
        for process in (left, *others):
            process.kill()
            process.wait()
    living.leave()
    assert clean() == ["no leftovers found"]
    assert not list(folder.iterdir())


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
