"""The supervisor as a process of its own, with hosts that share this machine's network.

Outside of an area of its own its sweep would end everything, so here it ends nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gradwire_lab.testbed.runner import Channel, pair
from support.beds import wait_until
from support.project import SOURCES

pytestmark = pytest.mark.processes

SUPERVISE = """
import socket, sys
from contextlib import nullcontext
from gradwire_lab.testbed import supervisor
from gradwire_lab.testbed.runner import Channel

supervisor.sweep = lambda: None
supervisor.inside = lambda namespace: nullcontext()
supervisor.keep_awake = list
supervisor.forget = lambda entry: print("forgot", entry)
"""
SERVE = (
    "supervisor.Supervisor(Channel(socket.socket(fileno=int(sys.argv[1]))), [0, 0], "
    "supervisor.NicPrograms((), ()), supervisor.RelayProgram(None)).serve()"
)
MAIN = "supervisor.main(int(sys.argv[1]), sys.argv[2], sys.argv[3])"


def python(script: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISE + script, *words],
        env={**os.environ, "PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def channel() -> Iterator[Channel]:
    """Return our end of a channel to a supervisor of two hosts, which ends with it."""
    own, other = pair()
    process = python(SERVE, str(other.fileno()), pass_fds=[other.fileno()])
    other.close()
    yield own
    own.close()
    said = process.communicate(timeout=20)
    assert (process.returncode, *said) == (0, "", "")


def hear(channel: Channel) -> dict[str, Any]:
    received = channel.receive(20)
    assert received is not None
    return received[0]


def start(channel: Channel, *command: str) -> list[int]:
    """Start a command on both hosts; return what to read their outputs and errors from."""
    pipes = [os.pipe() for _ in range(4)]
    environments = [{"RANK": str(host), "PATH": os.environ["PATH"]} for host in range(2)]
    words = {"command": command, "environments": environments, "folder": "/"}
    channel.send({"do": "start", **words}, [into for _, into in pipes])
    for _, into in pipes:
        os.close(into)
    return [out for out, _ in pipes]


def read(files: list[int]) -> list[bytes]:
    """Return all that comes out of files, and close them."""
    found = []
    for file in files:
        with os.fdopen(file, "rb") as stream:
            found.append(stream.read())
    return found


def runs(process: int) -> bool:
    """Return whether a process has not ended, though nobody may have asked how."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_hosts_have_their_variables_files_and_exit_codes(channel: Channel) -> None:
    files = start(channel, "sh", "-c", 'echo out $RANK $PWD; echo err $RANK >&2; exit "$RANK"')
    exits = sorted((hear(channel) for _ in range(2)), key=lambda told: told["host"])
    assert [(told["told"], told["host"], told["code"]) for told in exits] == [
        ("exited", 0, 0),
        ("exited", 1, 1),
    ]
    assert all(0 < told["seconds"] < 20 for told in exits)
    assert read(files) == [b"out 0 /\n", b"err 0\n", b"out 1 /\n", b"err 1\n"]
    channel.send({"do": "sweep"})
    assert hear(channel) == {"told": "swept", "relay": None}


def test_a_signal_reaches_all_that_a_host_has_started(channel: Channel) -> None:
    files = start(channel, "sh", "-c", "sleep 60 & echo $!; test $RANK = 0 || exit 0; wait")
    assert hear(channel)["host"] == 1
    first = os.read(files[0], 100)
    channel.send({"do": "signal", "number": int(signal.SIGTERM)})
    told = hear(channel)
    assert (told["host"], told["code"]) == (0, -signal.SIGTERM)
    wait_until(lambda: not runs(int(first)))
    with suppress(ProcessLookupError):  # that of the host that had ended is nobody's to signal
        os.kill(int(os.read(files[2], 100)), signal.SIGKILL)
    read(files)


def test_a_program_that_cannot_run_is_refused(channel: Channel) -> None:
    files = start(channel, "/dev/null")
    assert hear(channel) == {"told": "refused", "reason": "Permission denied"}
    assert read(files) == [b""] * 4
    again = start(channel, "true")  # it serves on
    assert {hear(channel)["code"] for _ in range(2)} == {0}
    assert read(again) == [b""] * 4


def test_outside_of_an_area_of_its_own_it_does_nothing() -> None:
    process = python(MAIN, "0", "entry", "elsewhere")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "")
    assert err == "expected to run as process 1 of a testbed's namespaces; use gradwire testbed run\n"


def test_a_network_that_cannot_be_made_is_told_and_its_entry_removed() -> None:
    own, other = pair()
    script = """
def no_network(topology, impairment):
    raise OSError("no bridge for " + str(topology.hosts))

supervisor.make_network = no_network
supervisor.os.getpid = lambda: 1
"""
    process = python(script + MAIN, str(other.fileno()), "entry", "elsewhere", pass_fds=[other.fileno()])
    other.close()
    from gradwire_lab.testbed import Topology

    own.send({"topology": Topology.even(3).to_dict(), "nic": []})
    assert hear(own) == {"told": "failed", "reason": "no bridge for 3"}
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "forgot entry\n", "")
    own.close()


def test_the_program_of_all_hosts_imports_no_torch() -> None:
    """It would take seconds of each testbed, and its memory as long as that lives."""
    check = "import sys, gradwire_lab.testbed.supervisor; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    done = subprocess.run([sys.executable, "-c", check], env=environment, timeout=60, check=False)
    assert done.returncode == 0
