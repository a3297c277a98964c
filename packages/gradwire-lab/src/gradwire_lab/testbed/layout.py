"""Create the network of a topology, inside a testbed's private namespaces."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from gradwire.errors import TestbedError
from gradwire_lab.testbed.namespaces import (
    NETEM_QUEUE_PACKETS,
    burst_nbytes,
    gso_nbytes,
    inside,
    new_namespace,
    queue_nbytes,
    tcp_settings,
)
from gradwire_lab.testbed.tools import find_tool
from gradwire_lab.testbed.topology import (
    INTERFACE,
    MOST_NBYTES_PER_S,
    NIC_HOST,
    NIC_LINK,
    Topology,
    address,
    hardware_address,
    host_name,
)

# The lines for ``ip -batch`` and ``tc -batch``, as pure functions, so that tests need no privileges.
#
# A host's link is a veth pair: ``eth0`` in the host's namespace, and ``h0``, ``h1``, ... at a bridge, its
# switch. Each end limits its outgoing traffic: ``eth0`` limits the host's sending, ``h0`` its receiving.

# If a relay delays the frames to a host, ``h0`` only receives frames from the host. The switch sends the
# host's frames to ``q0``, whose other end is ``r0``, where the relay reads the frames. The relay writes the
# frames to ``h0``.

CORE = "core"
Impairment = Literal["netem", "relay"]
"""The mechanism that delays frames or loses them on purpose."""


def switch_links(topology: Topology, namespaces: Sequence[str]) -> list[str]:
    """Return the lines for ``ip`` that create bridges, and veth pairs into the hosts' ``namespaces``."""
    groups = len(topology.groups) or 1
    lines = [line for group in range(groups) for line in _bridge(_switch(group))]
    for host, group in enumerate(topology.group_of):
        lines += [
            f"{_pair(host_name(host), INTERFACE, topology)} address {hardware_address(host)} "
            f"netns {namespaces[host]}",
            f"link set dev {host_name(host)} master {_switch(group)} up",
        ]
    return lines + (_core_links(topology) if groups > 1 else [])


def relay_links(topology: Topology) -> list[str]:
    """Return the lines for ``ip`` that insert a relay between each host's link and its switch."""
    lines: list[str] = []
    for host, group in enumerate(topology.group_of):
        port, end = relay_port(host), relay_end(host)
        lines += [
            _pair(end, port, topology),
            f"link set dev {end} up",
            f"link set dev {port} master {_switch(group)} up",
            f"link set dev {host_name(host)} type bridge_slave learning off flood off mcast_flood off "
            "bcast_flood off",
            f"link set dev {port} type bridge_slave learning off flood off",
        ]
    return lines


def relay_routes(topology: Topology) -> list[str]:
    """Return the lines for ``bridge`` that send the hosts' frames to the relay."""
    return [
        f"fdb add {hardware_address(host)} dev {relay_port(host)} master static"
        for host in range(topology.hosts)
    ]


def relay_port(host: int) -> str:
    """Return the name of the switch's port to the relay for a host."""
    return f"q{host}"


def relay_end(host: int) -> str:
    """Return the name of the interface at which the relay reads the frames for a host."""
    return f"r{host}"


def switch_limits(topology: Topology, impairment: Impairment | None = None) -> list[str]:
    """Return the lines for ``tc`` that limit (with netem, also impair) receiving and the core."""
    lines: list[str] = []
    for host, rate in enumerate(topology.rates_nbytes_per_s):
        lines += _limit(host_name(host), rate, topology)
        lines += _netem(host_name(host), rate, topology) if impairment == "netem" else []
    if len(topology.groups) > 1:
        for group in range(len(topology.groups)):
            for end in _uplink(group):
                lines += _limit(end, topology.core_nbytes_per_s, topology)
    return lines


def host_links(topology: Topology, host: int, *, has_nic: bool = False) -> list[str]:
    """Return the lines for ``ip`` that configure a host's interfaces and neighbours.

    The hosts' neighbour tables are static. Otherwise, an ARP request would wait in the queue of a busy link,
    and after three seconds the kernel would report the host as unreachable.

    If packets are lost on purpose, the hosts' TCP sends packets one by one. Otherwise, the kernel would
    handle several packets as one frame, and all of them would be lost together.
    """
    rate = topology.rates_nbytes_per_s[host]
    gso = "" if rate is None or has_nic else f" gso_max_size {gso_nbytes(rate, topology.mtu_nbytes)}"
    gso += " gso_max_segs 1" if topology.loss > 0 else ""
    lines = [
        "link set dev lo up",
        f"link set dev {INTERFACE}{gso} up",
        f"address add {address(host)}/24 dev {INTERFACE}",
    ]
    return lines + [
        f"neighbour add {address(peer)} lladdr {hardware_address(peer)} dev {INTERFACE} nud permanent"
        for peer in range(topology.hosts)
        if peer != host
    ]


def host_limits(topology: Topology, host: int) -> list[str]:
    """Return the lines for ``tc`` that limit a host's sending rate."""
    return _limit(INTERFACE, topology.rates_nbytes_per_s[host], topology)


def nic_links(topology: Topology, host: int, namespace: str) -> list[str]:
    """Return the lines for ``ip`` that configure a NIC's interfaces, and give its host a new one.

    A NIC's interfaces have their own Ethernet address and no IP address, so the kernel ignores their frames.
    """
    return [
        f"link set dev {NIC_LINK} address {hardware_address(host, nic=True)} up",
        f"{_pair(NIC_HOST, INTERFACE, topology)} address {hardware_address(host)} netns {namespace}",
        f"link set dev {NIC_HOST} up",
    ]


def nic_limits(topology: Topology, host: int) -> list[str]:
    """Return the lines for ``tc`` that limit the rate at which a NIC sends to the link."""
    return _limit(NIC_LINK, topology.rates_nbytes_per_s[host], topology)


def _pair(name: str, peer: str, topology: Topology) -> str:
    mtu = f"mtu {topology.mtu_nbytes}"
    return f"link add name {name} {mtu} type veth peer name {peer} {mtu}"


def _bridge(name: str) -> list[str]:
    return [f"link add name {name} type bridge mcast_snooping 0", f"link set dev {name} up"]


def _switch(group: int) -> str:
    return f"g{group}"


def _uplink(group: int) -> tuple[str, str]:
    """Return the two ends of the link between a group's switch and the core."""
    return f"up{group}", f"down{group}"


def _core_links(topology: Topology) -> list[str]:
    lines = _bridge(CORE)
    for group in range(len(topology.groups)):
        up, down = _uplink(group)
        lines += [
            _pair(up, down, topology),
            f"link set dev {up} master {_switch(group)} up",
            f"link set dev {down} master {CORE} up",
        ]
    return lines


def _limit(device: str, rate_nbytes_per_s: float | None, topology: Topology) -> list[str]:
    if rate_nbytes_per_s is None:
        return []
    return [
        f"qdisc add dev {device} root handle 1: tbf rate {round(rate_nbytes_per_s)}bps "
        f"burst {burst_nbytes(rate_nbytes_per_s, topology.mtu_nbytes)} limit {queue_nbytes(topology.hosts)}"
    ]


def _netem(device: str, rate_nbytes_per_s: float | None, topology: Topology) -> list[str]:
    """Return the lines for ``tc`` that impair frames once, on their last link, before the rate limit.

    netem keeps the order of frames with different delays only if a rate is set; the rate set here limits
    nothing.
    """
    if not topology.is_impaired:
        return []
    place = "root" if rate_nbytes_per_s is None else "parent 1:1"
    words = f"delay {topology.delay_s * 1e6:.3f}us"
    if topology.jitter_s > 0:
        words += f" {topology.jitter_s * 1e6:.3f}us rate {round(MOST_NBYTES_PER_S)}bps"
    if topology.loss > 0:
        words += f" loss random {100 * topology.loss:.9g}%"
    return [f"qdisc add dev {device} {place} handle 10: netem {words} limit {NETEM_QUEUE_PACKETS}"]


TOOL_TIMEOUT_S = 30.0
LINKS_TIMEOUT_S = 10.0
_GET_FLAGS, _IS_UP, _IS_RUNNING = 0x8913, 0x1, 0x40  # SIOCGIFFLAGS, IFF_UP, IFF_RUNNING
_TCP = Path("/proc/sys/net/ipv4")
_IPV6_ADDRESSES = Path("/proc/sys/net/ipv6/conf/default/addr_gen_mode")
_KINDS = {"type bridge": "bridge", "type veth": "veth", "tbf": "sch_tbf"}
_NETEM = "qdisc add dev lo root netem delay 1us"
_UNKNOWN = ("unknown", "not supported", "no such file")


def choose_impairment(topology: Topology, *, netem: bool = True) -> Impairment | None:
    """Return the mechanism that impairs frames: netem if available and allowed, else a relay."""
    if not topology.is_impaired:
        return None
    return "netem" if netem and _has_netem() else "relay"


def make_network(topology: Topology, impairment: Impairment | None = None) -> list[int]:
    """Create the network and return descriptors of the hosts' network namespaces.

    With the impairment ``"relay"``, no frames reach a host until a relay forwards them.

    Raises
    ------
    TestbedError
        If this kernel lacks a kind of link or limit, or ``ip`` or ``tc`` fails for any other reason.
    """
    _silence()
    namespaces = [_namespace() for _ in range(topology.hosts)]
    _batch("ip", switch_links(topology, [_path(namespace) for namespace in namespaces]))
    if impairment == "relay":
        _batch("ip", relay_links(topology))
        _batch("bridge", relay_routes(topology))
    _batch("tc", switch_limits(topology, impairment))
    for host, namespace in enumerate(namespaces):
        with inside(namespace):
            _batch("ip", host_links(topology, host))
            _batch("tc", host_limits(topology, host))
    return namespaces


def insert_nics(topology: Topology, hosts: Sequence[int]) -> list[int]:
    """Insert a NIC's namespace between each host and its link; return the NICs' descriptors.

    No frames pass until a program forwards them between ``NIC_HOST`` and ``NIC_LINK``.

    Raises
    ------
    TestbedError
        If ``ip`` or ``tc`` fails.
    """
    nics = [new_namespace() for _ in hosts]
    for nic in nics:
        with inside(nic):
            _silence()
    for host, (own, nic) in enumerate(zip(hosts, nics, strict=True)):
        with inside(own):
            _batch("ip", [f"link set dev {INTERFACE} netns {_path(nic)} name {NIC_LINK}"])
        with inside(nic):
            _batch("ip", nic_links(topology, host, _path(own)))
            _batch("tc", nic_limits(topology, host))
        with inside(own):
            _batch("ip", host_links(topology, host, has_nic=True))
    return nics


def await_links(namespaces: Sequence[int]) -> None:
    """Wait until all links pass frames: those of this namespace and of ``namespaces``, by their descriptors.

    After a link is set up, the kernel drops its frames until a kernel thread has activated both ends, which
    takes up to a second on a busy machine.

    Raises
    ------
    TestbedError
        If a link is still down after ``LINKS_TIMEOUT_S``.
    """
    deadline = time.monotonic() + LINKS_TIMEOUT_S
    _await_own_links(deadline)
    for namespace in namespaces:
        with inside(namespace):
            _await_own_links(deadline)


def explain(tool: str, lines: Sequence[str], complaint: str) -> str:
    """Return a sentence that explains the error output of a tool for a batch of lines."""
    words = [line for line in complaint.splitlines() if line.strip()] or ["no reason was given"]
    reason, place = words[0], words[-1].rpartition(":")[2]
    line = lines[int(place) - 1] if place.isdigit() and 0 < int(place) <= len(lines) else ""
    for sign, kind in _KINDS.items():
        if sign in line and any(unknown in reason.lower() for unknown in _UNKNOWN):
            return f"a testbed needs {kind}, which this kernel lacks; run modprobe {kind}"
    return f"the testbed's network could not be created: '{tool} {line}' reported: {reason.strip()}"


def _await_own_links(deadline: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while down := [name for _, name in socket.if_nameindex() if _is_awaited(asking, name)]:
            if time.monotonic() > deadline:
                raise TestbedError(
                    f"expected all links to be up within {LINKS_TIMEOUT_S:g} s, got {', '.join(down)} down; "
                    "try again"
                )
            time.sleep(1e-3)


def _is_awaited(asking: socket.socket, interface: str) -> bool:
    """Return whether an interface is set up but not active."""
    answer = fcntl.ioctl(asking, _GET_FLAGS, struct.pack("=16sH14x", interface.encode(), 0))
    flags: int = struct.unpack_from("=H", answer, 16)[0]
    return flags & (_IS_UP | _IS_RUNNING) == _IS_UP


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _namespace() -> int:
    namespace = new_namespace()
    with inside(namespace):
        _silence()
        known = (_TCP / "tcp_allowed_congestion_control").read_text(encoding="ascii").split()
        for name, value in tcp_settings(known).items():
            (_TCP / name).write_text(value, encoding="ascii")
    return namespace


def _silence() -> None:
    """Disable IPv6 on new interfaces, because the kernel would send its own frames for IPv6 addresses."""
    with suppress(FileNotFoundError):  # the kernel has no IPv6
        _IPV6_ADDRESSES.write_text("1", encoding="ascii")


def _has_netem() -> bool:
    """Return whether the kernel has netem, after a trial in a new network namespace."""
    namespace = new_namespace()
    try:
        with inside(namespace):
            return _run("tc", [_NETEM]).returncode == 0
    finally:
        os.close(namespace)


def _batch(tool: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    done = _run(tool, lines)
    if done.returncode != 0:
        raise TestbedError(explain(tool, lines, done.stderr or done.stdout))


def _run(tool: str, lines: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [find_tool(tool), "-batch", "-"],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"'{tool}' did not end within {TOOL_TIMEOUT_S:g} s; try again") from error
