"""``gradwire testbed clean``: ends and removes what killed testbeds left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gradwire.testbed.registry import MARK, dead_and_living, forget


def clean() -> list[str]:
    """Remove leftovers of this user's testbeds, never a running one; return a line for each action."""
    dead, living = dead_and_living()
    lines: list[str] = []
    for entry in dead:
        for process in marked_processes(entry.stem):
            line = f"ended process {process}, {_words(process)}"
            if _end(process, entry.stem):
                lines.append(line)
        forget(entry)
        lines.append(f"removed {entry}")
    lines = lines or ["nothing is left behind"]
    return lines + [f"left alone: {entry}, whose testbed is at work" for entry in living]


def marked_processes(mark: str) -> Iterator[int]:
    """Yield the processes that the testbed with this mark started, including their children."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        if _is_marked(int(folder.name), mark):
            yield int(folder.name)


def _is_marked(process: int, mark: str) -> bool:
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False
    return f"{MARK}={mark}".encode() in variables


def _end(process: int, mark: str) -> bool:
    """End a process, but not another one that got its process ID meanwhile."""
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
    return "which has just ended"
