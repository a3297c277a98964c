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
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from gradwire.launch.store import TimedStore
from support.processes import forkserver


class Host:
    """A process that serves a store at ``port``, until it is killed or the test's process ends."""

    def __init__(self) -> None:
        ours, theirs = forkserver().Pipe(duplex=False)
        self._process: BaseProcess = forkserver().Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        with ours:
            self.port: int = ours.recv()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def halt(self) -> None:
        """Let it stand still, and return when it does: a signal takes a moment."""
        os.kill(self.pid, signal.SIGSTOP)
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":  # or dead
            time.sleep(0.001)

    def kill(self) -> None:
        """End it, whatever state it is in."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection[int, None]) -> None:
    limit = timedelta(seconds=60)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    pipe.send(store.port)
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])


@contextmanager
def served() -> Iterator[tuple[Host, TCPStore]]:
    """Yield such a process, and a connection to its store."""
    host = Host()
    try:
        yield host, connected(host.port)
    finally:
        host.kill()


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
