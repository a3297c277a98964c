"""The software NIC: it compresses marked TCP streams of float32 between a host and its link.

The frames are handled in C++ (``native/nic``), by a thread for each direction.
"""

from gradwire.wire import TOS
from gradwire_gateware.software_nic.card import Nic, Settings

__all__ = ["TOS", "Nic", "Settings"]
