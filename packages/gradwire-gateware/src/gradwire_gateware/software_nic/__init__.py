"""The software NIC, which compresses marked TCP streams of float32 between a host and its link.

C++ code (``native/nic``) processes the frames, in one thread per direction.
"""

from gradwire.wire import TOS
from gradwire_gateware.software_nic.card import Nic, Settings

__all__ = ["TOS", "Nic", "Settings"]
