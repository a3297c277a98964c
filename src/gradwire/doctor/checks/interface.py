"""Over which network interface gradwire, and Gloo, would reach this machine's peers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.doctor.finding import Finding
from gradwire.links.rendezvous.addresses import (
    VARIABLE,
    address_of,
    interfaces_named,
    is_loopback,
    own_address,
)


@dataclass(frozen=True)
class Interfaces:
    """What gradwire and Gloo would use here.

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
        return any(address and is_loopback(address) for address in self.addresses)


def find_interfaces(environment: Mapping[str, str]) -> Interfaces:
    """Return what gradwire and Gloo would use in this environment."""
    named = interfaces_named(environment)
    addresses = tuple(address_of(name) for name in named) or (own_address(),)
    return Interfaces(named, addresses, tuple(name for _, name in socket.if_nameindex()))


def check_interfaces(found: Interfaces) -> Finding:
    """Judge the interface for ranks on several machines; on one machine any will do.

    A loopback address that the variable asks for is meant; one that the host's name has is a warning, which
    ``compare`` turns into a failure where ranks of several machines meet.
    """
    others = ", ".join(name for name in found.present if name != "lo") or "none but lo"
    for name, address in zip(found.named, found.addresses, strict=False):
        if name not in found.present:
            return Finding(
                "interface",
                "FAIL",
                f"{VARIABLE} names {name!r}, which is not here; this machine has {others}",
            )
        if not address:
            return Finding("interface", "FAIL", f"{VARIABLE} names {name}, which has no address; is it up?")
    where = f"{VARIABLE}={','.join(found.named)}" if found.named else "by the host's name"
    addresses = ", ".join(found.addresses)
    if found.is_loopback:
        return Finding(
            "interface",
            "ok" if found.named else "warn",
            f"{addresses} ({where}): only ranks of this machine can reach it; for several machines, set "
            f"{VARIABLE} to one of: {others}",
        )
    return Finding("interface", "ok", f"{addresses} ({where})")


def check_gloo(named: tuple[str, ...]) -> Finding:
    """Open what Gloo would listen with; this imports torch."""
    import torch.distributed as dist

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
