"""A call that may never come back: it has a limit, and the process ends as any other."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gradwire.launch.store import within
from support.project import TESTS
from support.store_host import Host


@pytest.mark.processes
def test_a_process_that_leaves_a_call_behind_ends_as_any_other() -> None:
    host = Host()
    try:
        words = ["-m", "support.store_host", str(host.port), str(host.pid), "0.05"]
        done = subprocess.run([sys.executable, *words], cwd=TESTS, timeout=60, check=False)
    finally:
        host.kill()
    assert done.returncode == 0


_LEAVE_BESIDE_A_UNIX_SOCKET = """
import socket
import threading
from gradwire.launch.store import within
start, threading.Thread.start = threading.Thread.start, None
try:
    within(print, 5.0)
except TypeError:
    print("not started")
threading.Thread.start = start
beside = socket.socketpair()
server = socket.create_server(("127.0.0.1", 0))
silent = socket.create_connection(server.getsockname())
try:
    within(lambda: print("woken by", silent.recv(1)), 0.05, server.getsockname()[1])
except TimeoutError:
    print("left")
"""


@pytest.mark.processes
def test_a_call_that_hangs_at_the_end_is_woken_whatever_other_sockets_there_are() -> None:
    program = [sys.executable, "-c", _LEAVE_BESIDE_A_UNIX_SOCKET]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["not started", "left", "woken by b''"]


def test_a_call_brings_its_result_its_error_or_a_timeout() -> None:
    assert within(lambda: "result", 5.0) == "result"
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 // 0, 5.0)
    never = threading.Event()
    with pytest.raises(TimeoutError):
        within(never.wait, 0.05)
    never.set()
