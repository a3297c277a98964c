"""The temporary folder of a command that runs a script, and the end of the script with the command.

The command holds a lock on a file in the folder. In every Python process of the script, a thread waits for
that lock, and gets it as soon as the command has ended for any reason. If the file doesn't say that the
command finished its work, the process removes the folder, which may contain gradients, and kills itself.
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

PREFIX = "gradwire-script-"
_ENDED = ".ended"
_ALIVE, _BEGUN, _DONE = "alive", b"on", b"done"
_REMOVAL_S = 2.0
"""The seconds for which the removal of a folder is retried, because a process may be about to add a file."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Remove the leftovers of killed commands, and yield a new private folder, removed at the end."""
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
    """Remove this user's folders whose commands have been killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if folder.suffix == _ENDED:
                _remove(folder)
                continue
            with (folder / _ALIVE).open("rb") as alive:
                fcntl.flock(alive, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if alive.read():  # if empty, the command is about to lock the file
                    _remove(folder)


def end_with_command(folder: Path) -> None:
    """Kill this process and its forks if the command that owns ``folder`` ends before its work is done."""
    if _watch(folder):
        os.register_at_fork(after_in_child=lambda: _watch(folder))


def _watch(folder: Path) -> bool:
    try:
        opened = os.open(folder / _ALIVE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # this machine isn't the command's, or the command has ended
        return False
    Thread(target=_wait, args=(opened, folder), name="gradwire lifeline", daemon=True).start()
    return True


def _wait(opened: int, folder: Path) -> None:
    with suppress(OSError):  # a process that becomes a daemon closes all files; it is not killed
        before = os.fstat(opened)
        fcntl.flock(opened, fcntl.LOCK_SH)
        if not os.path.samestat(before, os.fstat(opened)) or os.pread(opened, len(_DONE), 0) == _DONE:
            return
        _remove(folder)
        os.kill(os.getpid(), signal.SIGKILL)  # the script may ignore any other signal


def _remove(folder: Path) -> None:
    # After the rename, the script's processes find no folder to add files to. The new name is the same for
    # all processes, so that another process can continue if one is killed.
    ended = folder if folder.suffix == _ENDED else folder.with_name(folder.name + _ENDED)
    with suppress(OSError):
        folder.rename(ended)
        folder = ended
    if not folder.exists():  # another process has renamed it
        folder = ended
    deadline = time.monotonic() + _REMOVAL_S
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.05)
