"""Run a script's command with watches in its processes, and read what they leave."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gradwire.auto.estimates.observed import Observed
from gradwire.errors import JobError
from gradwire.profile.settings import Notes, Settings
from gradwire.profile.tried import COUNTED, Tried
from gradwire.units import counted

Found = TypeVar("Found")
GRACE_S = 5.0
"""What a script may take to clean up after SIGTERM."""
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def run_script(command: Sequence[str], settings: Settings) -> int:
    """Run a command to its end, and return its exit code. Raises ``JobError`` where it cannot be started.

    What ends this process ends the command, with all of its process group: SIGTERM first, so that it may
    clean up, then SIGKILL. If this process is killed itself, the kernel kills the command.
    """
    try:
        process = subprocess.Popen(
            command,
            env=settings.variables(os.environ),
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        raise JobError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    try:
        return process.wait()
    except BaseException:
        try:
            _end_group(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise


def _end_with_parent() -> None:
    """Let the kernel kill this process, which is about to become the command, when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask all processes of the command's group to end, and wait for them."""
    deadline = time.monotonic() + GRACE_S
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                os.killpg(process.pid, 0)
                time.sleep(0.05)


def read_observed(settings: Settings, code: int) -> Observed | None:
    """Return what was observed; None on a machine that is not rank 0's, whose command has it.

    Raises ``JobError`` that says why nothing was.
    """
    return _read(settings, code, settings.observed, Observed.load)


def read_tried(settings: Settings, code: int) -> Tried | None:
    """Return what attached steps took; None and errors as ``read_observed``."""
    return _read(settings, code, settings.tried, Tried.load)


def _read(settings: Settings, code: int, path: Path, load: Callable[[Path], Found]) -> Found | None:
    if path.exists():
        return load(path)
    notes = Notes.load(settings.notes)
    wanted = settings.warm_up + settings.steps
    ending = "ended" if code == 0 else f"ended with exit code {code}, see above,"
    if notes is None:
        raise JobError(
            f"the script {ending} before it made a DistributedDataParallel or an FSDP2 module that gradwire "
            "could watch; profile a script that trains with one of them, in a Python that has gradwire"
        )
    if notes.problem:
        raise JobError(notes.problem)
    if notes.done and notes.rank:
        return None
    if settings.tries and notes.steps >= wanted:
        attached = notes.steps - wanted
        raise JobError(
            f"the script {ending} after {counted(notes.steps, 'step')}, {attached} of them attached, before "
            f"gradwire had chosen a plan and taken {COUNTED} steps with it; let it take some hundreds"
        )
    raise JobError(
        f"the script {ending} after {counted(notes.steps, 'step')}, but {wanted} are needed "
        f"({settings.warm_up} to warm up, {settings.steps} that count); let it take more, or lower "
        "--steps and --warm-up"
    )
