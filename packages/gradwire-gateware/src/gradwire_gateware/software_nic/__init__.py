"""The software NIC, which compresses marked TCP streams in C++ (``native/nic``), one thread per direction."""

from gradwire.wire import TOS
from gradwire_gateware.software_nic.card import Nic, Settings

__all__ = ["TOS", "Nic", "Settings"]
