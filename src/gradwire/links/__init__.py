"""Frames between two ranks: the contract (``base``), the transports, and wrappers for experiments."""

from gradwire.links.base import Link, Receiving, Sending
from gradwire.links.loopback import LoopbackLink, loopback

__all__ = ["Link", "LoopbackLink", "Receiving", "Sending", "loopback"]
