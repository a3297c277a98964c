from __future__ import annotations

import fcntl
import socket
import struct
import subprocess
import sys
import time

import pytest

from gradwire.errors import TestbedError as _TestbedError  # pytest would take the name for a test's
from gradwire_lab.testbed import layout
from gradwire_lab.testbed.layout import await_links, explain
from gradwire_lab.testbed.namespaces import private_area
from support.beds import needs_namespaces

LINES = [
    "link add name g0 type bridge",
    "link add name h0 type veth peer name eth0",
    "qdisc add dev h0 root handle 1: tbf rate 1bps burst 1 limit 1",
]


@pytest.mark.parametrize(
    ("complaint", "sentence"),
    [
        ("Error: Unknown device type.\nCommand failed -:1\n", "needs bridge, which this kernel lacks"),
        ("RTNETLINK answers: Operation not supported\nCommand failed -:2\n", "needs veth, which"),
        ("Error: Specified qdisc kind is unknown.\nCommand failed -:3\n", "needs sch_tbf, which"),
        (
            "RTNETLINK answers: File exists\nCommand failed -:1\n",
            f"'ip {LINES[0]}' reported: RTNETLINK answers: File exists",
        ),
        ("", "'ip ' reported: no reason was given"),
    ],
)
def test_a_complaint_becomes_a_sentence(complaint: str, sentence: str) -> None:
    told = explain("ip", LINES, complaint)
    assert sentence in told
    assert "\n" not in told


_DOWN, _SET_UP, _ACTIVE = 0x1002, 0x1003, 0x1043


def test_links_are_awaited_until_they_are_active(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def flags_of(_socket: object, _request: int, name_and_flags: bytes) -> bytes:
        name = name_and_flags[:16].rstrip(b"\0").decode()
        asked.append(name)
        flags = _DOWN if name == "ifb0" else _ACTIVE if asked.count(name) > 3 else _SET_UP
        return name_and_flags[:16] + struct.pack("=H14x", flags)

    monkeypatch.setattr(fcntl, "ioctl", flags_of)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "ifb0"), (2, "h0"), (3, "h1")])
    await_links([])
    assert [asked.count(name) for name in ("ifb0", "h0", "h1")] == [4, 4, 4]
    monkeypatch.setattr(layout, "LINKS_TIMEOUT_S", 0.01)
    asked[:] = ["h1"] * 3
    monkeypatch.setattr(time, "sleep", lambda _: asked.remove("h0"))
    refused = r"^expected all links to be up within 0\.01 s, got h0 down; try again$"
    with pytest.raises(_TestbedError, match=refused):
        await_links([])


ALL_LINKS = """
import json, subprocess
from gradwire_lab.testbed import Topology
from gradwire_lab.testbed.layout import await_links, make_network
await_links(make_network(Topology.even(8, groups=2, delay="1ms"), "relay"))
links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
states = [each["operstate"] for each in links if "UP" in each["flags"]]
print(len(states), *(each for each in states if each not in ("UP", "UNKNOWN")))
"""


@needs_namespaces
@pytest.mark.processes
def test_all_links_of_a_network_are_active() -> None:
    command = [*private_area(), sys.executable, "-c", ALL_LINKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # 8 hosts with a relay have 3 links each, 2 switches and their core 7: itself, and the ends of two links
    assert done.stdout == "31\n", done.stderr
