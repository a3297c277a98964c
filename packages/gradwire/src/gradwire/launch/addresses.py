"""The address on which this rank listens for its peers.

The first choice is an interface that the user names in ``GLOO_SOCKET_IFNAME``, or else in
``NCCL_SOCKET_IFNAME``. The second choice is the local address of the route to the store's host, because every
rank reaches that host. If no host serves the store, the address is the first address of this host's name, as
in Gloo.

On the store's host, the address may depend on the other ranks (``listening``).

Lanes are distributed only over the interfaces in ``GLOO_SOCKET_IFNAME``, because only this variable is a list
in the user's order.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gradwire.errors import LinkError

VARIABLE = "GLOO_SOCKET_IFNAME"
OTHER_VARIABLE = "NCCL_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_IPV6 = Path("/proc/net/if_inet6")
_ON_THE_LINK = "20"
_LOOPBACK, _LOOPBACK_INTERFACE = "127.0.0.1", "lo"
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses that are reserved for documentation, so no host has them: the default route leads to them."""
_NCCL = re.compile(r"\^?=?[\w.@-]+(,[\w.@-]+)*,?")


class Selection(NamedTuple):
    """The interfaces of this host that an environment variable selects, in order of preference."""

    variable: str
    names: tuple[str, ...]

    def addresses(self) -> tuple[str, ...]:
        """Return the address of each interface, or "" for an interface without an address."""
        return tuple(address_of(name) for name in self.names)


def selection(environment: Mapping[str, str]) -> Selection | None:
    """Return the interfaces that the user's variable selects, or None without one. Raises ``LinkError``."""
    named = gloo_interfaces(environment)
    if named:
        return Selection(VARIABLE, named)
    text = environment.get(OTHER_VARIABLE, "")
    if not text:
        return None
    if not _NCCL.fullmatch(text):
        raise LinkError(
            f"{OTHER_VARIABLE}: expected comma-separated interface prefixes (after '=': exact names; after "
            f"'^' or '^=': exclusions), got {text!r}; write such a list, or set {VARIABLE} instead"
        )
    names = tuple(name for name in interfaces() if _selects(text, name) and address_of(name))
    if not names:
        raise LinkError(
            f"{OTHER_VARIABLE}: expected an interface with an address, got {text!r}; set this variable or "
            f"{VARIABLE} to one of: {', '.join(interfaces())}"
        )
    return Selection(OTHER_VARIABLE, names)


def gloo_interfaces(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the interfaces in ``GLOO_SOCKET_IFNAME``; () if the variable is not set."""
    return tuple(name for name in environment.get(VARIABLE, "").split(",") if name)


def interfaces() -> tuple[str, ...]:
    """Return the names of this host's interfaces."""
    return tuple(name for _, name in socket.if_nameindex())


def _selects(text: str, name: str) -> bool:
    """Return whether ``NCCL_SOCKET_IFNAME`` selects an interface; only the exact name selects ``lo``."""
    excludes, exact = text.startswith("^"), "=" in text[:2]
    given = [each for each in text.lstrip("^=").split(",") if each]
    if excludes and name == _LOOPBACK_INTERFACE:
        return False
    return excludes != any(name == each if exact else name.startswith(each) for each in given)


def own_choice(environment: Mapping[str, str], store_host: str = "", lane: int = 0) -> str:
    """Return the address to listen on; "" if the choice requires addresses of other ranks.

    ``store_host`` is the store's host, or "" without a store. Of n interfaces in ``GLOO_SOCKET_IFNAME``, lane
    j uses number j modulo n. Raises ``LinkError`` if the user selects an interface without an address.
    """
    selected = selection(environment)
    if selected is None and not store_host:
        return address_of_name()
    route = route_to(store_host) if store_host else ""
    is_away = bool(route) and not is_loopback(route)
    if selected is None:
        return route if is_away else ""
    name = selected.names[lane % len(selected.names) if selected.variable == VARIABLE else 0]
    first, others = address_of(name), selected.addresses()[1:]
    if not first:
        raise LinkError(
            f"{selected.variable}: expected an interface with an address, got {name!r}; choose one of: "
            f"{', '.join(interfaces())}"
        )
    if selected.variable == VARIABLE or not others:
        return first
    if is_away or not store_host:
        return route if route in others else first
    return ""


def choice_towards(others: Iterable[str], environment: Mapping[str, str]) -> str:
    """Return the address to listen on, for a rank on the store's host, given the addresses of other ranks.

    If no route leads to another host, the result is the first selected address, or that of the host's name.
    """
    selected = selection(environment)
    allowed = () if selected is None else selected.addresses()
    for other in others:
        route = route_to(other)
        if route and not is_loopback(route) and (selected is None or route in allowed):
            return route
    return allowed[0] if allowed else address_of_name()


def route_to(host: str) -> str:
    """Return the local address of the route to ``host``; "" without a route. No packet is sent.

    IPv4 is preferred, as in ``address_of``, so that hosts with IPv4 and IPv6 agree.
    """
    found = []
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, place in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as asking:
                asking.connect(place)
                found.append(str(asking.getsockname()[0]))
    usable = [each for each in found if "%" not in each]  # not link-local: peers lack the interface's name
    return min(usable, key=lambda each: (is_loopback(each), ":" in each), default="")


def is_loopback(address: str) -> bool:
    """Return whether ``address`` is a loopback address, which other hosts can't reach."""
    return ipaddress.ip_address(address).is_loopback


def with_port(host: str, port: int | str) -> str:
    """Return host and port as text, with brackets around an IPv6 address.

    Examples
    --------
    >>> with_port("10.0.0.1", 29500), with_port("fd00::1", 29500)
    ('10.0.0.1:29500', '[fd00::1]:29500')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def remedy(address: str) -> str:
    """Return the remedy to show if a host listens on ``address`` but cannot be reached."""
    if is_loopback(address):
        return (
            f"other hosts cannot reach the loopback address {address}; for ranks on several hosts, set "
            f"{VARIABLE} on each host to the interface that the other hosts reach ('ip -brief address' "
            "lists the interfaces)"
        )
    return (
        f"on the host with {address}, set {VARIABLE} to an interface that the other hosts reach, and allow "
        "connections in the firewall"
    )


def address_of(name: str) -> str:
    """Return an interface's IPv4 address, or else an IPv6 address that isn't link-local, or else ""."""
    return next(iter(_addresses_of(name)), "")


def interface_of(address: str) -> str:
    """Return the interface of this host with ``address``; "" if no interface has this address."""
    return next((name for name in interfaces() if address in _addresses_of(name)), "")


def _addresses_of(name: str) -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found.append(socket.inet_ntoa(answer[20:24]))
    with suppress(OSError):
        for line in _IPV6.read_text(encoding="ascii").splitlines():
            digits, _, _, scope, _, its_name = line.split()
            if its_name == name and scope != _ON_THE_LINK:
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def address_of_name() -> str:
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


def outward_address(environment: Mapping[str, str]) -> str:
    """Return an address of this host for ranks on any host, chosen without asking a store or another rank.

    If this host's name resolves to a loopback address, the result is the local address of the default route,
    if there is one.
    """
    chosen = own_choice(environment)
    if selection(environment) is None and is_loopback(chosen):
        routes = [route_to(each) for each in _ELSEWHERE]
        return next((each for each in routes if each and not is_loopback(each)), chosen)
    return chosen
