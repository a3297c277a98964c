"""The folder of one profile, and the end of the script's processes when the profiler is gone.

The profiler holds a lock on a file in the folder. Every Python process of the script waits for that lock in a
thread, and has it as soon as the profiler has ended, whatever ended it. Unless the file says that all went
well, the process removes the folder, in which gradients may be, and ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

PREFIX = "gradwire-profile-"
_ALIVE, _BEGUN, _DONE = "alive", b"on", b"done"
_REMOVAL_S = 2.0
"""How long a process that is about to end may still add files to a folder that is being removed."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can read, and remove it, and those of killed profilers."""
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with (folder / _ALIVE).open("wb", buffering=0) as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            alive.write(_BEGUN)
            yield folder
            os.pwrite(alive.fileno(), _DONE, 0)
    finally:
        _remove(folder)


def remove_leftovers() -> None:
    """Remove this user's folders whose profilers have been killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _ALIVE).open("rb") as alive:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if alive.read():  # else its profiler is about to lock it
                    _remove(folder)


def end_with_profiler(folder: Path) -> None:
    """End this process, and its forks, when the profiler of ``folder`` ends before its work is done."""
    if _watch(folder):
        os.register_at_fork(after_in_child=lambda: _watch(folder))


def _watch(folder: Path) -> bool:
    try:
        opened = os.open(folder / _ALIVE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # on another machine, or after the profiler's end
        return False
    Thread(target=_wait, args=(opened, folder), name="gradwire lifeline", daemon=True).start()
    return True


def _wait(opened: int, folder: Path) -> None:
    with suppress(OSError):  # a process that becomes a daemon closes all files, and is left alone
        before = os.fstat(opened)
        fcntl.flock(opened, fcntl.LOCK_SH)
        if not os.path.samestat(before, os.fstat(opened)) or os.pread(opened, len(_DONE), 0) == _DONE:
            return
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGKILL)  # the script may ignore any other


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVAL_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.05)
