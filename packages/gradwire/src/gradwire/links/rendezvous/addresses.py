"""The address on which this machine listens for its peers, chosen as in Gloo.

So one setting controls both: the interface in ``GLOO_SOCKET_IFNAME``. Without it, the address is the first
that the host's name resolves to, or the loopback address if no socket can be bound to that.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gradwire.errors import LinkError

VARIABLE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_IPV6 = Path("/proc/net/if_inet6")
_ON_THE_LINK = "20"
_LOOPBACK = "127.0.0.1"


def interfaces_named(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the interfaces in ``GLOO_SOCKET_IFNAME``; () if it is not set."""
    return tuple(name for name in environment.get(VARIABLE, "").split(",") if name)


def listening_address(environment: Mapping[str, str]) -> str:
    """Return the address to listen on. Raises ``LinkError`` if the interface has none."""
    named = interfaces_named(environment)
    if not named:
        return own_address()
    address = address_of(named[0])
    if not address:
        present = ", ".join(name for _, name in socket.if_nameindex())
        raise LinkError(
            f"{VARIABLE}: expected an interface with an address, got {named[0]!r}; choose one of: {present}"
        )
    return address


def is_loopback(address: str) -> bool:
    """Return whether only its own host can reach ``address``."""
    return ipaddress.ip_address(address).is_loopback


def remedy(address: str) -> str:
    """Return the advice for a host that listens on ``address`` but cannot be reached."""
    if is_loopback(address):
        return (
            f"other hosts cannot reach the loopback address {address}; for ranks on several hosts, set "
            f"{VARIABLE} on each host to the interface that the other hosts reach ('ip -brief address' "
            "lists the interfaces)"
        )
    return f"check {VARIABLE} and the firewall on the host with {address}"


def address_of(name: str) -> str:
    """Return an interface's IPv4 address, or else a non-link-local IPv6 address; "" if it has neither."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    with suppress(OSError):
        for line in _IPV6.read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, its_name = line.split()
            if its_name == name and scope != _ON_THE_LINK:
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return ""


def own_address() -> str:
    """Return the first address of the host's name to which a socket can be bound, or the loopback address."""
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, place in socket.getaddrinfo(
            socket.gethostname(), 0, type=socket.SOCK_STREAM
        ):
            if "%" in str(place[0]):
                continue  # link-local: peers don't know the interface's name
            with suppress(OSError), socket.socket(family, kind, protocol) as trying:
                trying.bind(place)
                return str(place[0])
    return _LOOPBACK
