"""A process that serves torch's store; and what ends while that process stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from gradwire.launch.store import TimedStore

_SERVE = """
import sys
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
limit = timedelta(seconds=60)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
print(store.port, flush=True)
sys.stdin.read()
"""


def serve() -> tuple[subprocess.Popen[str], int]:
    """Start a process that serves a store, until its standard input ends; return it and its port."""
    host = subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    return host, int(host.stdout.readline())


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], TCPStore]]:
    """Yield such a process, and a connection to its store."""
    host, port = serve()
    with host:
        try:
            yield host, connected(port)
        finally:
            host.kill()  # whatever state it is in


def halt(host: subprocess.Popen[str]) -> None:
    """Let it stand still, and return when it does: a signal takes a moment."""
    os.kill(host.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, host.pid, os.WSTOPPED | os.WNOWAIT)


def connected(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))


def leave_while_a_call_hangs() -> None:
    """End this process with a call that has no answer; the store's host dies while the interpreter ends."""
    port, pid, delay_s = map(float, sys.argv[1:])
    store = connected(int(port))
    os.kill(int(pid), signal.SIGSTOP)
    try:
        TimedStore(store, "rank 1 leaving").has(["key"], time.monotonic())
    except TimeoutError:
        subprocess.Popen(["sh", "-c", f"sleep {delay_s}; kill -KILL {int(pid)}"])


if __name__ == "__main__":
    leave_while_a_call_hangs()
