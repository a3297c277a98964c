"""Create the network of a topology, inside a testbed's private namespaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gradwire.errors import TestbedError
from gradwire.testbed.network.commands import (
    host_limits,
    host_links,
    nic_limits,
    nic_links,
    switch_limits,
    switch_links,
)
from gradwire.testbed.network.limits import tcp_settings
from gradwire.testbed.network.namespaces import inside, new_namespace
from gradwire.testbed.network.tools import find_tool
from gradwire.testbed.network.topology import INTERFACE, NIC_LINK, Topology

TOOL_TIMEOUT_S = 30.0
_TCP = Path("/proc/sys/net/ipv4")
_KINDS = {"type bridge": "bridge", "type veth": "veth", "netem": "sch_netem", "tbf": "sch_tbf"}
_UNKNOWN = ("unknown", "not supported", "no such file")


def make_network(topology: Topology) -> list[int]:
    """Create the network and return descriptors of the hosts' network namespaces.

    Raises
    ------
    TestbedError
        If this kernel lacks a kind of link or limit, or ``ip`` or ``tc`` fails for another reason.
    """
    namespaces = [_namespace() for _ in range(topology.hosts)]
    _batch("ip", switch_links(topology, [_path(namespace) for namespace in namespaces]))
    _batch("tc", switch_limits(topology))
    for host, namespace in enumerate(namespaces):
        with inside(namespace):
            _batch("ip", host_links(topology, host))
            _batch("tc", host_limits(topology, host))
    return namespaces


def insert_nics(topology: Topology, hosts: Sequence[int]) -> list[int]:
    """Put a namespace for a NIC between each host and its link; return the NICs' descriptors.

    Nothing passes until a program forwards frames between ``NIC_HOST`` and ``NIC_LINK``.

    Raises
    ------
    TestbedError
        If ``ip`` or ``tc`` fails.
    """
    nics = [new_namespace() for _ in hosts]
    for host, (own, nic) in enumerate(zip(hosts, nics, strict=True)):
        with inside(own):
            _batch("ip", [f"link set dev {INTERFACE} netns {_path(nic)} name {NIC_LINK}"])
        with inside(nic):
            _batch("ip", nic_links(topology, host, _path(own)))
            _batch("tc", nic_limits(topology, host))
        with inside(own):
            _batch("ip", host_links(topology, host, has_nic=True))
    return nics


def explain(tool: str, lines: Sequence[str], complaint: str) -> str:
    """Return one sentence that explains the output of ``ip`` or ``tc`` after a line of a batch failed."""
    words = [line for line in complaint.splitlines() if line.strip()] or ["no reason was given"]
    reason, place = words[0], words[-1].rpartition(":")[2]
    line = lines[int(place) - 1] if place.isdigit() and 0 < int(place) <= len(lines) else ""
    for sign, kind in _KINDS.items():
        if sign in line and any(unknown in reason.lower() for unknown in _UNKNOWN):
            hint = "; leave out the delay" if kind == "sch_netem" else ""
            return f"a testbed needs {kind}, which this kernel lacks (modprobe {kind} may load it){hint}"
    return f"the testbed's network could not be made: '{tool} {line}' said: {reason.strip()}"


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _namespace() -> int:
    namespace = new_namespace()
    with inside(namespace):
        known = (_TCP / "tcp_allowed_congestion_control").read_text(encoding="ascii").split()
        for name, value in tcp_settings(known).items():
            (_TCP / name).write_text(value, encoding="ascii")
    return namespace


def _batch(tool: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    try:
        done = subprocess.run(
            [find_tool(tool), "-batch", "-"],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"'{tool}' did not end within {TOOL_TIMEOUT_S:g} s; try again") from error
    if done.returncode != 0:
        raise TestbedError(explain(tool, lines, done.stderr or done.stdout))
