"""Links, which carry frames between ranks: the contract (``base``), three transports, and a rate limiter.

Names are loaded on first use, because ``rendezvous.tls`` is also used without torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.links.base import Link, Receiving, Sending
    from gradwire.links.loopback import LoopbackLink, loopback
    from gradwire.links.mpi import MpiLink
    from gradwire.links.process_group import ProcessGroupLink
    from gradwire.links.throttle import Port, ThrottledLink

_HOMES = {
    "base": ("Link", "Receiving", "Sending"),
    "loopback": ("LoopbackLink", "loopback"),
    "mpi": ("MpiLink",),
    "process_group": ("ProcessGroupLink",),
    "throttle": ("Port", "ThrottledLink"),
}
__all__ = [
    "Link",
    "LoopbackLink",
    "MpiLink",
    "Port",
    "ProcessGroupLink",
    "Receiving",
    "Sending",
    "ThrottledLink",
    "loopback",
]


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
