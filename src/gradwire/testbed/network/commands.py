"""The lines for ``ip -batch`` and ``tc -batch``, as pure functions, so that tests need no privileges.

A host's link is a veth pair: ``eth0`` in the host's namespace, and ``h0``, ``h1``, ... at a bridge, its
switch. Each end limits what leaves through it: ``eth0`` what the host sends, ``h0`` what it receives.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.testbed.network.limits import (
    NETEM_QUEUE_PACKETS,
    burst_nbytes,
    gso_nbytes,
    queue_nbytes,
)
from gradwire.testbed.network.topology import (
    INTERFACE,
    NIC_HOST,
    NIC_LINK,
    Topology,
    address,
    hardware_address,
    host_name,
)

CORE = "core"


def switch_links(topology: Topology, namespaces: Sequence[str]) -> list[str]:
    """Return the lines for ``ip`` that create bridges and veth pairs.

    Parameters
    ----------
    namespaces
        The path of each host's network namespace, which gets the host's end of the link.
    """
    groups = len(topology.groups) or 1
    lines = [line for group in range(groups) for line in _bridge(_switch(group))]
    for host, group in enumerate(topology.group_of):
        lines += [
            f"{_pair(host_name(host), INTERFACE, topology)} address {hardware_address(host)} "
            f"netns {namespaces[host]}",
            f"link set dev {host_name(host)} master {_switch(group)} up",
        ]
    return lines + (_core_links(topology) if groups > 1 else [])


def switch_limits(topology: Topology) -> list[str]:
    """Return the lines for ``tc`` that limit what hosts receive, and what crosses the core."""
    lines: list[str] = []
    for host, rate in enumerate(topology.rates_nbytes_per_s):
        lines += _limit(host_name(host), rate, topology)
        lines += _delay(host_name(host), rate, topology)
    if len(topology.groups) > 1:
        for group in range(len(topology.groups)):
            for end in _uplink(group):
                lines += _limit(end, topology.core_nbytes_per_s, topology)
    return lines


def host_links(topology: Topology, host: int, *, has_nic: bool = False) -> list[str]:
    """Return the lines for ``ip`` inside a host; the link to a NIC of its own has no limit.

    The hosts know each other's Ethernet addresses from the start. Otherwise, an ARP request would wait in the
    queue of a busy link, and after three seconds the host would count as unreachable.
    """
    rate = topology.rates_nbytes_per_s[host]
    gso = "" if rate is None or has_nic else f" gso_max_size {gso_nbytes(rate, topology.mtu_nbytes)}"
    lines = [
        "link set dev lo up",
        f"link set dev {INTERFACE} addrgenmode none{gso} up",
        f"address add {address(host)}/24 dev {INTERFACE}",
    ]
    return lines + [
        f"neighbour add {address(peer)} lladdr {hardware_address(peer)} dev {INTERFACE} nud permanent"
        for peer in range(topology.hosts)
        if peer != host
    ]


def host_limits(topology: Topology, host: int) -> list[str]:
    """Return the lines for ``tc`` inside a host, which limit what it sends."""
    return _limit(INTERFACE, topology.rates_nbytes_per_s[host], topology)


def nic_links(topology: Topology, host: int, namespace: str) -> list[str]:
    """Return the lines for ``ip`` inside a NIC, which has the shaped link already.

    The NIC's interfaces have no IP addresses, and Ethernet addresses to which nobody sends, so the kernel
    leaves their frames to the NIC.

    Parameters
    ----------
    namespace
        The path of the host's network namespace, which gets a new interface.
    """
    return [
        f"link set dev {NIC_LINK} address {hardware_address(host, nic=True)} addrgenmode none up",
        f"{_pair(NIC_HOST, INTERFACE, topology)} address {hardware_address(host)} netns {namespace}",
        f"link set dev {NIC_HOST} addrgenmode none up",
    ]


def nic_limits(topology: Topology, host: int) -> list[str]:
    """Return the lines for ``tc`` inside a NIC, which limit what it sends to the link."""
    return _limit(NIC_LINK, topology.rates_nbytes_per_s[host], topology)


def _pair(name: str, peer: str, topology: Topology) -> str:
    mtu = f"mtu {topology.mtu_nbytes}"
    return f"link add name {name} {mtu} type veth peer name {peer} {mtu}"


def _bridge(name: str) -> list[str]:
    return [f"link add name {name} type bridge", f"link set dev {name} addrgenmode none up"]


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


def _delay(device: str, rate_nbytes_per_s: float | None, topology: Topology) -> list[str]:
    """Return the lines that delay frames once, on their last link, before the rate limit."""
    if topology.delay_s == 0:
        return []
    place = "root" if rate_nbytes_per_s is None else "parent 1:1"
    return [
        f"qdisc add dev {device} {place} handle 10: netem delay {topology.delay_s * 1e6:.3f}us "
        f"limit {NETEM_QUEUE_PACKETS}"
    ]
