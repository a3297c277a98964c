"""The registry of this user's testbeds: one small file each, locked by the process that owns the testbed.

The kernel releases the lock when that process ends, for whatever reason, so a file that can be locked has no
owner. Process IDs would be reused, for example after a restart; locks aren't.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gradwire.errors import TestbedError

MARK = "GRADWIRE_TESTBED_ID"
"""The variable in the environment of every process of a testbed; its value is random and unique."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A testbed in the registry, and the descriptor whose lock shows that it runs."""

    path: Path
    lock: int

    @property
    def mark(self) -> str:
        """The value of ``MARK`` in its processes."""
        return self.path.stem

    def leave(self) -> None:
        """Remove the testbed from the registry."""
        forget(self.path)
        os.close(self.lock)


def enter() -> Entry:
    """Return a new testbed's entry. Raises ``TestbedError`` if the registry can't be written."""
    path = registry_folder() / f"{secrets.token_hex(16)}{_SUFFIX}"
    try:
        with _locked(path.parent, make=True):
            lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            started = datetime.now().astimezone().isoformat(timespec="seconds")
            os.write(lock, json.dumps({"pid": os.getpid(), "started": started}).encode("ascii"))
    except OSError as error:
        raise TestbedError(
            f"a testbed is noted in {path.parent}, which cannot be written ({error.strerror}); set TMPDIR"
        ) from error
    return Entry(path, lock)


def forget(path: Path) -> None:
    """Remove an entry, and the folder with the last entry, if they still exist."""
    try:
        with _locked(path.parent, make=False):
            path.unlink(missing_ok=True)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
    except FileNotFoundError:
        pass


def dead_and_living() -> tuple[list[Path], list[Path]]:
    """Return the entries whose testbeds have ended, and those whose testbeds are running."""
    dead: list[Path] = []
    living: list[Path] = []
    try:
        with _locked(registry_folder(), make=False):
            for path in sorted(registry_folder().glob(f"*{_SUFFIX}")):
                (living if _is_locked(path) else dead).append(path)
    except FileNotFoundError:
        pass
    return dead, living


def registry_folder() -> Path:
    """Return this user's registry, below ``$TMPDIR``."""
    return Path(tempfile.gettempdir(), f"gradwire-testbed-{os.geteuid()}")


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def _locked(folder: Path, make: bool) -> Iterator[None]:
    """Lock the registry for the ``with`` block. Raises ``FileNotFoundError`` if there is none."""
    while True:
        try:
            if make:
                with suppress(FileExistsError):  # Path.mkdir would look again, when it may be gone
                    os.mkdir(folder, mode=0o700)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if make and folder.parent.is_dir():
                continue  # somebody has removed the empty folder meanwhile
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_still(folder, descriptor):
                continue
            _check_owner(folder, os.fstat(descriptor))
            yield
            return
        finally:
            os.close(descriptor)


def _is_still(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _check_owner(folder: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise TestbedError(
            f"{folder} must be this user's alone, but others own or may read it; remove it or set TMPDIR"
        )
