"""``gradwire nic``: a software NIC that compresses marked streams between a host and its link."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gradwire.cli.parser import Parser
from gradwire.tables import show
from gradwire.wire import TOS
from gradwire_gateware.software_nic.card import Counts, Nic, Settings
from gradwire_gateware.software_nic.report import json_of, serve, table_of


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire nic``, which forwards frames until a signal arrives. Raises ``GradwireError``."""
    options = parser().parse_args(arguments)
    settings = settings_of(options)

    def tell(counts: Counts) -> None:
        if options.json:
            sys.stdout.write(json_of(counts))
        else:
            show(table_of(counts))
        sys.stdout.flush()

    serve(lambda: Nic(options.host, options.link, settings), tell, options.ready_fd)


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings of parsed options. Raises ``SpecError``."""
    return Settings(
        options.codec,
        options.tos,
        options.merge,
        options.drop,
        options.reorder,
        options.delay / 1e3,
        options.seed,
    )


def parser() -> Parser:
    """Return the parser of ``gradwire nic``."""
    parser = Parser(
        prog="gradwire nic",
        usage="gradwire nic --host IF --link IF --codec CODEC [options]",
        description="Forward frames between a host and its link, and compress the TCP streams of\n"
        "float32 with the type of service. The peer's NIC decompresses them.",
        epilog="SIGUSR1 prints the counters, and SIGTERM or Ctrl-C ends the NIC and prints them\n\n"
        "example:\n  gradwire nic --host veth0 --link eth1 --codec inceptionn:2^-10",
    )
    group = parser.add_argument_group("interfaces")
    group.add_argument("--host", required=True, metavar="IF", help="the interface at the host")
    group.add_argument("--link", required=True, metavar="IF", help="the interface at the link")
    group = parser.add_argument_group("compression")
    group.add_argument("--codec", required=True, metavar="CODEC", help="inceptionn, truncate or bitpack")
    group.add_argument("--tos", type=_byte, default=TOS, metavar="BYTE", help=f"of marked streams ({TOS:#x})")
    group.add_argument(
        "--no-merge", dest="merge", action="store_false", help="one packet per segment, as in hardware"
    )
    group = parser.add_argument_group("faults, towards the link")
    group.add_argument("--drop", type=float, default=0.0, metavar="P", help="drop this share of frames (0)")
    group.add_argument("--reorder", type=float, default=0.0, metavar="P", help="reorder this share (0)")
    group.add_argument("--delay", type=float, default=0.0, metavar="MS", help="delay each by MS (0)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the random choice (0)")
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the counters as JSON")
    group.add_argument("--ready-fd", type=int, metavar="FD", help="write a byte to FD once it forwards")
    group.add_argument("-h", "--help", action="help", help="show this text")
    return parser


def _byte(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a byte such as 0x28, got {text!r}") from error
