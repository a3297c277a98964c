"""The registry of this user's testbeds: one small file per testbed, locked by the testbed's owner, a process.

The kernel releases the lock when the owner ends, for whatever reason, so a file that can be locked has no
owner. Unlike a lock, a process ID can be reused, for example after a restart.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gradwire.errors import TestbedError
from gradwire.machine import TOPOLOGY
from gradwire_lab.testbed.topology import INTERFACE, Topology, address

MARK = "GRADWIRE_TESTBED_ID"
"""The environment variable that marks every process of a testbed. Its value is random and unique."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A testbed's entry in the registry, with the descriptor of its lock."""

    path: Path
    lock: int

    @property
    def mark(self) -> str:
        """The value of ``MARK`` in the testbed's processes."""
        return self.path.stem

    def leave(self) -> None:
        """Remove the testbed from the registry."""
        try:
            forget(self.path)
        finally:
            os.close(self.lock)


def enter() -> Entry:
    """Add a new testbed to the registry and return its entry. Raises ``TestbedError`` on a write error."""
    path = registry_folder() / f"{secrets.token_hex(16)}{_SUFFIX}"
    try:
        with _locked(path.parent, make=True):
            lock = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            started = datetime.now().astimezone().isoformat(timespec="seconds")
            os.write(lock, json.dumps({"pid": os.getpid(), "started": started}).encode("ascii"))
    except OSError as error:
        raise TestbedError(
            f"the testbed registry {path.parent} cannot be written ({error.strerror}); set TMPDIR to a "
            "writable folder"
        ) from error
    return Entry(path, lock)


def forget(path: Path) -> None:
    """Remove an entry and, with the last entry, the registry's folder, if they still exist."""
    try:
        with _locked(path.parent, make=False):
            path.unlink(missing_ok=True)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
    except FileNotFoundError:
        pass


def dead_and_living() -> tuple[list[Path], list[Path]]:
    """Return the entries of ended testbeds, and the entries of running testbeds."""
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
    """Lock the registry for the ``with`` block. Raises ``FileNotFoundError`` without a registry."""
    while True:
        try:
            if make:
                with suppress(FileExistsError):  # Path.mkdir would check whether the folder still exists
                    os.mkdir(folder, mode=0o700)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if make and folder.parent.is_dir():
                continue  # another process has just removed the empty folder
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
            f"expected a folder private to this user at {folder}, got a folder that other users own or can "
            "read; remove the folder, or set TMPDIR to another folder"
        )


# ``gradwire testbed clean``: ends the processes and removes the entries of killed testbeds.


def clean() -> list[str]:
    """Remove leftovers of this user's killed testbeds; return a line for each action."""
    dead, living = dead_and_living()
    lines: list[str] = []
    for entry in dead:
        for process in marked_processes(entry.stem):
            line = f"ended process {process}, {_words(process)}"
            if _end(process, entry.stem):
                lines.append(line)
        forget(entry)
        lines.append(f"removed {entry}")
    lines = lines or ["no leftovers found"]
    return lines + [f"kept: {entry}, whose testbed is running" for entry in living]


def marked_processes(mark: str) -> Iterator[int]:
    """Yield the process IDs of the testbed with this mark, including child processes."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        if _is_marked(int(folder.name), mark):
            yield int(folder.name)


def _is_marked(process: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # the process is gone, or another user's
        return False
    return f"{MARK}={mark}".encode() in variables


def _end(process: int, mark: str) -> bool:
    """Kill a process unless its ID now belongs to a different process; return whether it was killed."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            if _is_marked(process, mark):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False


def _words(process: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return " ".join(word.decode(errors="replace") for word in words)[:80]
    return "already ended"


# The environment of a host's command: ``torchrun``'s variables for one process on each of N hosts.

MASTER_PORT = 29500
"""The port of the rendezvous. The port is always free, because the testbed has its own network."""
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
"""The variables that make glibc keep large blocks, instead of half a step's computation in page faults."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def variables(
    topology: Topology, host: int, mark: str, inherited: Mapping[str, str], impairment: str | None = None
) -> dict[str, str]:
    """Return the environment of a host's command: the inherited environment, and the variables of a rank.

    Unless ``OMP_NUM_THREADS`` is inherited, OpenMP's threads are limited to the host's share of the machine's
    cores, because each host would otherwise start a thread on every core. PyTorch's warning about addresses
    without host names is turned off.
    """
    cores = len(os.sched_getaffinity(0))
    described = {
        "topology": topology.to_dict(),
        "addresses": [address(each) for each in range(topology.hosts)],
        "interface": INTERFACE,
        "impairment": impairment,
        "shared_cores": cores,
    }
    return {
        "OMP_NUM_THREADS": str(max(1, cores // topology.hosts)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **inherited,
        **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), str(host)),
        **dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(topology.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": mark,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        **dict.fromkeys(INTERFACE_VARIABLES, INTERFACE),
        MARK: mark,
        TOPOLOGY: json.dumps(described),
    }
