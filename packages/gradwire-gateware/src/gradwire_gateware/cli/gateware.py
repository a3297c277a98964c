"""``gradwire gateware``: the codecs as hardware."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from gradwire.cli.lists import between_commas
from gradwire.cli.parser import Parser, add_json, add_overwrite, add_usual, add_values, file_path
from gradwire.files import check_writable, write_files
from gradwire.records import make_record, to_json
from gradwire.tables import Column, Table, show
from gradwire_gateware import WIDTHS
from gradwire_gateware.blocks import BLOCKS, PARAMETERS, read_parameters
from gradwire_gateware.synthesis import TARGETS

ACTIONS = MappingProxyType(
    {
        "export": "write a block as Verilog, and show its ports",
        "report": "synthesise blocks, and show their resources",
    }
)


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire gateware``. Raises ``GradwireError``."""
    lines = "\n".join(f"  {name:<8}{summary}" for name, summary in ACTIONS.items())
    example = "gradwire gateware export --block bfp-compressor --codec bfp:7x16 --verilog x.v"
    parser = Parser(
        prog="gradwire gateware",
        usage="gradwire gateware ACTION [options]",
        description="The codecs as hardware for network cards and FPGAs, in Verilog.",
        epilog=f"actions:\n{lines}\n\nexample:\n  {example}",
    )
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="one of the actions below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or the options of ACTION")
    if not arguments:
        parser.error(f"expected an action, got none; pass one of {', '.join(ACTIONS)}")
    action = parser.parse_args(arguments[:1]).action
    (_export if action == "export" else _report)(arguments[1:])


def _export(arguments: Sequence[str]) -> None:
    lines = "\n".join(f"  {name:<25}{block.summary}" for name, block in BLOCKS.items())
    numbers = "\n".join(
        f"  {name:<25}{each.meaning} (default: {each.default})" for name, each in PARAMETERS.items()
    )
    parser = Parser(
        prog="gradwire gateware export",
        usage="gradwire gateware export --block NAME --verilog FILE [options]",
        description="Write a block as one Verilog file. The streams of the block are AXI streams.",
        epilog=f"blocks:\n{lines}\n\nparameters:\n{numbers}\n\n"
        "example:\n  gradwire gateware export --block inceptionn-compressor "
        "--codec inceptionn:2^-10 \\\n      --verilog x.v",
    )
    parser.add_argument(
        "--block", metavar="NAME", choices=BLOCKS, required=True, help="one of the blocks below"
    )
    parser.add_argument("--codec", metavar="SPEC", help="codec, such as inceptionn:2^-10")
    _add_width(parser)
    parameters = "parameters, such as ranks=4,chunk_words=512"
    add_values(parser, ("--with parameters", "LIST", None, None, parameters))
    parser.add_argument(
        "--verilog", type=file_path, metavar="FILE", required=True, help="Verilog file to write"
    )
    add_overwrite(parser)
    add_usual(parser)
    words = parser.parse_args(arguments)
    check_writable("--verilog", words.verilog, words.overwrite)
    from gradwire_gateware.export import export

    values = {} if words.parameters is None else read_parameters(words.parameters)
    made = export(words.block, words.codec, words.width, values)
    write_files({words.verilog: made.verilog.encode()})
    columns = [Column.of_text("port"), Column.of_text("dir"), Column("bits"), Column.of_text("meaning")]
    show(Table(columns, [(port.name, port.direction, str(port.bits), port.meaning) for port in made.ports]))


def _add_width(parser: Parser) -> None:
    widths = " or ".join(map(str, WIDTHS))
    add_values(parser, ("--width", "BITS", int, WIDTHS[0], f"bits of a word: {widths} (default: 256)"))


def _report(arguments: Sequence[str]) -> None:
    lines = "\n".join(f"  {name:<25}{target.title}" for name, target in TARGETS.items())
    parser = Parser(
        prog="gradwire gateware report",
        usage="gradwire gateware report [options]",
        description="Synthesise blocks with open tools, place and route them for ECP5, and show cells\n"
        "and clock rates. A block takes minutes for each target, or seconds if unchanged.",
        epilog=f"targets:\n{lines}\n\n"
        "example:\n  gradwire gateware report --blocks float-adder --json x.json",
    )
    add_values(
        parser,
        ("--blocks", "LIST", None, ",".join(BLOCKS), "blocks, as in export (default: all)"),
        ("--targets", "LIST", None, ",".join(TARGETS), "targets below (default: all)"),
    )
    _add_width(parser)
    add_json(parser)
    add_overwrite(parser)
    add_usual(parser)
    words = parser.parse_args(arguments)
    if words.json is not None:
        check_writable("--json", words.json, words.overwrite)
    from gradwire.line_rate.display import progress
    from gradwire_gateware.synthesis import SCHEMA, cells, measure, tables

    wanted, rows = cells(between_commas(words.blocks), between_commas(words.targets), words.width), []
    with progress(len(wanted), words.quiet) as advance:
        for row in measure(wanted):
            rows.append(row)
            advance(len(rows), f"{row['target']}: {row['block']}")
    if words.json is not None:
        write_files({words.json: to_json(make_record(SCHEMA, {"rows": rows})).encode()})
    show(*tables(rows))
