"""``gradwire nic`` as a process, with signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gradwire_lab.testbed.namespaces import inside
from support.beds import needs_namespaces
from support.nic_bed import SPEC, Bed, bed, gradients, ip, projected, transfer
from support.project import SOURCES

pytestmark = [pytest.mark.processes, needs_namespaces]
Call = Callable[..., Any]


def _start(made: Bed, side: str, *words: str) -> subprocess.Popen[str]:
    heard, told = os.pipe()
    names = ["--host", "host", "--link", "link", "--ready-fd", str(told)]
    with inside(made.place[side]):
        process = subprocess.Popen(
            [sys.executable, "-m", "gradwire", "nic", *names, "--codec", SPEC, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[told],
            env={**os.environ, "PYTHONPATH": SOURCES},
        )
    os.close(told)
    came = os.read(heard, 1)
    os.close(heard)
    assert came == b"+", process.communicate()
    return process


def _packet_sockets(made: Bed, side: str) -> int:
    with inside(made.place[side]), open("/proc/thread-self/net/packet", encoding="ascii") as file:
        return len(file.readlines()) - 1


def _signals() -> None:
    values = projected(gradients(100_000))
    with bed() as made:
        one, other = _start(made, "a", "--json", "-"), _start(made, "b")
        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes()) == values.tobytes()
            one.send_signal(signal.SIGUSR1)
            assert one.stdout is not None
            live = "".join(iter(one.stdout.readline, "}\n")) + "}"
            assert json.loads(live)["to_link"]["compressed"] > 0
        one.send_signal(signal.SIGTERM)
        other.send_signal(signal.SIGINT)
        out, err = one.communicate(timeout=20)
        assert (one.returncode, err) == (0, "")
        assert json.loads(out)["to_link"]["compressed"] == json.loads(live)["to_link"]["compressed"]
        out, err = other.communicate(timeout=20)
        assert (other.returncode, err) == (0, "")
        assert "packets restored" in out
        assert _packet_sockets(made, "a") == _packet_sockets(made, "b") == 0


def test_signals_print_the_counters_and_end_it(call: Call) -> None:
    call(_signals)


def _kill() -> None:
    values = projected(gradients(3_000_000))
    with bed(rate="200mbit") as made:
        made.start("a")
        killed = _start(made, "b")

        def kill() -> None:
            killed.kill()
            killed.communicate(timeout=20)
            assert _packet_sockets(made, "b") == 0
            made.start("b")

        with made.connection() as (client, accepted):
            assert transfer(client, accepted, values.tobytes(), meanwhile=kill) == values.tobytes()
        assert made.cards["b"].counts()["to_host"]["restored"] > 0


def test_a_killed_nic_leaves_nothing_behind_and_may_be_replaced(call: Call) -> None:
    call(_kill)


def _vanished() -> None:
    with bed() as made:
        process = _start(made, "b")
        ip(made.place["b"], "link del dev link")
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (2, "")
        said = "the interface 'link' of the NIC no longer exists; create the interface, and restart the NIC"
        assert err == f"gradwire: {said}\n"


def test_a_vanished_interface_ends_it(call: Call) -> None:
    call(_vanished)
