"""Commands that the gateware adds to ``gradwire``."""

from types import MappingProxyType

COMMANDS = MappingProxyType(
    {
        "gateware": ("write the codecs as hardware, in Verilog", "gradwire_gateware.cli.gateware:run"),
        "nic": ("compress marked streams between a host and its link", "gradwire_gateware.cli.nic:run"),
    }
)
"""The help line and the function of each command, for the entry point ``gradwire.commands``."""
