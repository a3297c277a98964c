"""The software NIC: it compresses marked TCP streams of float32 between a host and its link.

The frames are handled in C++ (``native/nic``), by a thread for each direction.
"""

from gradwire.nic.card import Nic
from gradwire.nic.settings import Settings
from gradwire.wire import TOS

__all__ = ["TOS", "Nic", "Settings"]
