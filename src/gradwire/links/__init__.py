"""Frames between two ranks: the contract (``base``), three transports, and two wrappers for experiments."""

from gradwire.links.base import Link, Receiving, Sending
from gradwire.links.faults import Fault, FaultyLink
from gradwire.links.loopback import LoopbackLink, loopback
from gradwire.links.mpi.link import MpiLink
from gradwire.links.process_group import ProcessGroupLink
from gradwire.links.throttle import Port, ThrottledLink

__all__ = [
    "Fault",
    "FaultyLink",
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
