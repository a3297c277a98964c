"""Run a script's command with an observer in each of its processes, which all end with this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from gradwire.errors import JobError
from gradwire.script.entry import Entry

GRACE_S = 5.0
"""The seconds that a script has to clean up after SIGTERM."""
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def run_script(command: Sequence[str], entry: Entry, passed_on: Collection[int] = ()) -> int:
    """Run a command to its end, and return its exit code, or 128 + n if signal n ended the command.

    Signals in ``passed_on`` that this process receives are sent to the command's process group, and the wait
    continues. The command ignores the signals that this process ignores. If an exception, such as an
    interrupt, ends the wait, the group gets SIGTERM, so that its processes can clean up, and then SIGKILL. If
    this process is killed, the kernel kills the command. Raises ``JobError`` if the command cannot be
    started.
    """
    with _passing_on(passed_on) as group:
        try:
            process = subprocess.Popen(
                command, env=entry.variables(os.environ), start_new_session=True, preexec_fn=_end_with_parent
            )
        except OSError as error:
            raise JobError(
                f"{command[0]} cannot be started: {error.strerror or error}; pass the path of a program that "
                "runs on this machine"
            ) from error
        group.begin(process.pid)
        try:
            code = process.wait()
        except BaseException:
            try:
                _end_group(process)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise
    return code if code >= 0 else 128 - code


class _Group:
    """The command's process group, which gets this process's signals, even those before the group's start."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._early: list[int] = []

    def begin(self, process: int) -> None:
        """Send the signals received so far to the group of ``process``, and later signals immediately."""
        self._process = process
        for number in self._early:
            self.send(number, None)

    def send(self, number: int, _frame: FrameType | None) -> None:
        """Send a signal to the group, or store it until the group has started."""
        if self._process is None:
            self._early.append(number)
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process, number)


@contextmanager
def _passing_on(signals: Collection[int]) -> Iterator[_Group]:
    group = _Group()
    heard = [each for each in signals if signal.getsignal(each) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, group.send) for number in heard}
    try:
        yield group
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """In the new process of the command, ask the kernel to kill this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the command's process group, and wait up to ``GRACE_S`` for its end."""
    deadline = time.monotonic() + GRACE_S
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
                os.killpg(process.pid, 0)
                time.sleep(0.05)
