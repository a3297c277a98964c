"""Over which network interface Gloo would reach this machine's peers.

Gloo takes the interfaces that ``GLOO_SOCKET_IFNAME`` names; without it, the address that the host's own name
resolves to, and where no socket can be bound to that one, the loopback interface.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

from gradwire.doctor.finding import Finding

VARIABLE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Interfaces:
    """What Gloo would use here.

    Parameters
    ----------
    named
        The interfaces that the variable names, () where it is not set.
    addresses
        Their addresses, "" for one that does not exist or has none; else that of the host's name.
    present
        All interfaces of this machine.
    """

    named: tuple[str, ...]
    addresses: tuple[str, ...]
    present: tuple[str, ...]

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach this one at all of its addresses."""
        return any(address and ipaddress.ip_address(address).is_loopback for address in self.addresses)


def find_interfaces(environment: Mapping[str, str]) -> Interfaces:
    """Return what Gloo would use in this environment."""
    named = tuple(name for name in environment.get(VARIABLE, "").split(",") if name)
    addresses = tuple(_address_of(name) for name in named) or (_own_address(),)
    return Interfaces(named, addresses, tuple(name for _, name in socket.if_nameindex()))


def check_interfaces(found: Interfaces) -> Finding:
    """Judge the interface for ranks on several machines; on one machine any will do."""
    others = ", ".join(name for name in found.present if name != "lo") or "none but lo"
    for name, address in zip(found.named, found.addresses, strict=False):
        if name not in found.present:
            return Finding(
                "interface",
                "FAIL",
                f"{VARIABLE} names {name!r}, which is not here; this machine has {others}",
            )
        if not address:
            return Finding(
                "interface", "warn", f"{VARIABLE} names {name}, which has no IPv4 address; is it up?"
            )
    where = f"{VARIABLE}={','.join(found.named)}" if found.named else "by the host's name"
    addresses = ", ".join(found.addresses)
    if found.is_loopback:
        return Finding(
            "interface",
            "ok",
            f"{addresses} ({where}): ranks of this machine only; else set {VARIABLE} to one of: {others}",
        )
    return Finding("interface", "ok", f"{addresses} ({where})")


def check_gloo(named: tuple[str, ...]) -> Finding:
    """Open what Gloo would listen with."""
    if not dist.is_available() or not dist.is_gloo_available():
        return Finding("Gloo", "FAIL", "this torch was built without it; install one from pytorch.org")
    try:
        for name in named:
            dist.ProcessGroupGloo.create_device(interface=name)
        if not named:
            dist.ProcessGroupGloo.create_default_device()
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition("] ")[2]
        return Finding(
            "Gloo", "FAIL", f"it cannot listen: {reason}; check {VARIABLE} and GLOO_DEVICE_TRANSPORT"
        )
    return Finding("Gloo", "ok", "available, and can listen")


def _address_of(name: str) -> str:
    """Return an interface's IPv4 address, "" where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""


def _own_address() -> str:
    """Return the first address of the host's name that a socket can be bound to, else the loopback one."""
    with suppress(OSError, UnicodeError):
        for family, kind, protocol, _, place in socket.getaddrinfo(
            socket.gethostname(), 0, type=socket.SOCK_STREAM
        ):
            with suppress(OSError), socket.socket(family, kind, protocol) as trying:
                trying.bind(place)
                return str(place[0]).partition("%")[0]
    return _LOOPBACK
