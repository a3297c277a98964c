"""``gradwire gateware``: the codecs as hardware."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from gradwire.cli.parser import Parser, file_path
from gradwire.files import check_writable, write_files
from gradwire.gateware.blocks import BLOCKS
from gradwire.gateware.words import WIDTHS
from gradwire.tables import Column, Table, show

ACTIONS = MappingProxyType({"export": "write a block as Verilog, and show its ports"})


def run(arguments: Sequence[str]) -> None:
    """Do what the words say. Raises ``GradwireError``."""
    lines = "\n".join(f"  {name:<8}{summary}" for name, summary in ACTIONS.items())
    example = "gradwire gateware export --block bfp-compressor --codec bfp:7x16 --out x.v"
    parser = Parser(
        prog="gradwire gateware",
        usage="gradwire gateware ACTION [options]",
        description="The codecs as hardware for network cards and FPGAs, in Verilog.",
        epilog=f"actions:\n{lines}\n\nexample:\n  {example}",
    )
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="what to do, see below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or more after ACTION")
    if not arguments:
        parser.error(f"name an action: {', '.join(ACTIONS)}")
    parser.parse_args(arguments[:1])
    _export(arguments[1:])


def _export(arguments: Sequence[str]) -> None:
    lines = "\n".join(f"  {name:<25}{block.summary}" for name, block in BLOCKS.items())
    parser = Parser(
        prog="gradwire gateware export",
        usage="gradwire gateware export --block NAME --out FILE [options]",
        description="Write a block as one file of Verilog. Its streams are AXI streams.",
        epilog=f"blocks:\n{lines}\n\nexample:\n  gradwire gateware export --block inceptionn-compressor "
        "--codec inceptionn:2^-10 \\\n      --out x.v",
    )
    parser.add_argument("--block", metavar="NAME", choices=BLOCKS, required=True, help="which, see below")
    parser.add_argument("--codec", metavar="SPEC", help="the format, such as inceptionn:2^-10")
    widths = " or ".join(map(str, WIDTHS))
    parser.add_argument(
        "--width", type=int, default=WIDTHS[0], metavar="BITS", help=f"of a word, {widths} (256)"
    )
    parser.add_argument("--out", type=file_path, metavar="FILE", required=True, help="where to write it")
    parser.add_argument("--overwrite", action="store_true", help="replace an older file")
    parser.add_argument("-h", "--help", action="help", help="show this text")
    words = parser.parse_args(arguments)
    check_writable("--out", words.out, words.overwrite)
    from gradwire.gateware.export import export

    made = export(words.block, words.codec, words.width)
    write_files({words.out: made.verilog.encode()})
    columns = [Column.of_text("port"), Column.of_text("way"), Column("bits"), Column.of_text("meaning")]
    show(Table(columns, [(port.name, port.direction, str(port.bits), port.meaning) for port in made.ports]))
