"""Run a script's command with watches in its processes, and read what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from gradwire.auto.estimates.observed import Observed
from gradwire.errors import JobError
from gradwire.profile.settings import Notes, Settings
from gradwire.units import counted

_GRACE_S = 20.0


def run_script(command: Sequence[str], settings: Settings) -> int:
    """Run a command to its end, and return its exit code. Raises ``JobError`` where it cannot be started.

    Signals that end this process end the command first, which may clean up.
    """
    try:
        process = subprocess.Popen(command, env=settings.variables(os.environ))
    except OSError as error:
        raise JobError(f"{command[0]} cannot be started: {error.strerror or error}") from error
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def read_observed(settings: Settings, code: int) -> Observed | None:
    """Return what was observed; None on a machine that is not rank 0's, whose command has it.

    Raises ``JobError`` that says why nothing was.
    """
    if settings.observed.exists():
        return Observed.load(settings.observed)
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
    raise JobError(
        f"the script {ending} after {counted(notes.steps, 'step')}, but {wanted} are needed "
        f"({settings.warm_up} to warm up, {settings.steps} that count); let it take more, or lower "
        "--steps and --warm-up"
    )
