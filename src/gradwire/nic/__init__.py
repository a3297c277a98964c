"""The software NIC: it compresses marked TCP streams of float32 between a host and its link.

The frames are handled in C++ (``native/nic``), by a thread for each direction.
"""

from gradwire.nic.card import Nic
from gradwire.nic.settings import TOS, Settings

__all__ = ["TOS", "Nic", "Settings"]
