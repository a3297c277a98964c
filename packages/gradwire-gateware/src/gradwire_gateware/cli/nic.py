"""``gradwire nic``: a software NIC that compresses marked streams between a host and its link."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import MappingProxyType

from gradwire.cli.parser import Parser, add_json, add_overwrite, add_usual, add_values, seconds
from gradwire.errors import JobError
from gradwire.files import STANDARD_OUTPUT, check_writable, write_files
from gradwire.records import to_json
from gradwire.tables import Column, Table, show
from gradwire.wire import TOS
from gradwire_gateware.software_nic.card import Counts, Nic, Settings


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire nic``, which forwards frames until a signal arrives. Raises ``GradwireError``."""
    options = parser().parse_args(arguments)
    settings = settings_of(options)
    if options.json is not None:
        check_writable("--json", options.json, options.overwrite)

    def tell(counts: Counts) -> None:
        if options.json is not None:
            write_files({options.json: json_of(counts).encode()})
        if options.json != STANDARD_OUTPUT:
            show(table_of(counts))
            sys.stdout.flush()

    serve(lambda: Nic(options.host, options.link, settings), tell, options.ready_fd)


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings of parsed options. Raises ``SpecError``."""
    names = ("codec", "tos", "merge", "drop", "reorder", "delay", "seed")
    return Settings(*(getattr(options, name) for name in names))


def parser() -> Parser:
    """Return the parser of ``gradwire nic``."""
    parser = Parser(
        prog="gradwire nic",
        usage="gradwire nic --host IF --link IF --codec SPEC [options]",
        description="Forward frames between a host and its link, and compress the marked TCP streams\n"
        "of float32. The peer's NIC decompresses these streams.",
        epilog="SIGUSR1 prints the counters, and SIGTERM or Ctrl-C ends the NIC and prints them\n\n"
        "example:\n  gradwire nic --host veth0 --link eth1 --codec inceptionn:2^-10",
    )
    group = parser.add_argument_group("interfaces")
    group.add_argument("--host", required=True, metavar="IF", help="interface to the host")
    group.add_argument("--link", required=True, metavar="IF", help="interface to the link")
    group = parser.add_argument_group("compression")
    group.add_argument(
        "--codec", required=True, metavar="SPEC", help="codec: inceptionn, truncate or bitpack"
    )
    add_values(group, ("--tos", "BYTE", _byte, TOS, f"type of service of marked streams (default: {TOS:#x})"))
    group.add_argument(
        "--no-merge", dest="merge", action="store_false", help="one packet per segment, as in hardware"
    )
    group = parser.add_argument_group("faults in frames to the link")
    add_values(
        group,
        ("--drop", "P", float, 0.0, "drop this share of frames (default: 0)"),
        ("--reorder", "P", float, 0.0, "reorder this share of frames (default: 0)"),
        ("--delay", "TIME", seconds, 0.0, "one-way delay of every frame, such as 1ms (default: 0)"),
        ("--seed", "N", int, 0, "random seed, for the faults (default: 0)"),
    )
    group = parser.add_argument_group("output")
    add_json(group)
    add_overwrite(group)
    ready = "write a byte to FD when the NIC forwards frames"
    add_values(group, ("--ready-fd", "FD", int, None, ready))
    add_usual(group)
    return parser


def _byte(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a byte, got {text!r}; pass e.g. 0x28") from error


# The counters, as a table and as JSON.


SCHEMA = "gradwire-nic/1"
WORDS = MappingProxyType(
    {
        "frames_in": "frames in",
        "bytes_in": "bytes in",
        "frames_out": "frames out",
        "bytes_out": "bytes out",
        "compressed": "packets compressed",
        "restored": "packets restored",
        "payload_bytes": "payload before compression",
        "body_bytes": "payload after compression",
        "offers": "handshakes with a NIC's option",
        "other_codec": "with other settings",
        "raw_other": "raw: not marked",
        "raw_empty": "raw: without data",
        "raw_unseen": "raw: start of stream not seen",
        "raw_no_peer": "raw: no such NIC at the peer",
        "raw_larger": "raw: would not shrink",
        "raw_repeated": "raw: sent again too often",
        "raw_bad_checksum": "raw: wrong checksum",
        "raw_arrived": "raw: arrived uncompressed",
        "malformed": "malformed, dropped",
        "faults_dropped": "dropped on purpose",
        "faults_reordered": "reordered on purpose",
        "unsent": "refused by the interface",
        "overruns": "arrived too fast, lost",
    }
)
"""The name of each counter in the table."""


def table_of(counts: Counts) -> Table:
    """Return a table of all counters except zeros."""
    ways = (counts["to_link"], counts["to_host"])
    rows = [
        (words, *(f"{way[name]}" if way[name] else "" for way in ways))
        for name, words in WORDS.items()
        if any(way[name] for way in ways)
    ]
    return Table((Column.of_text("NIC"), Column("to the link"), Column("to the host")), rows)


def json_of(counts: Counts) -> str:
    """Return all counters as JSON."""
    return to_json({"schema": SCHEMA, **counts})


# Run a NIC until a signal ends it.

LOOK_S = 0.5
"""The interval in seconds between checks that the interfaces still exist."""
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(start: Callable[[], Nic], tell: Callable[[Counts], None], ready: int | None = None) -> None:
    """Run a NIC until SIGTERM, SIGINT, or SIGHUP. Then stop it and pass its counters to ``tell``.

    On SIGUSR1, pass the current counters to ``tell``, whose error is only printed. The signals stay blocked
    in this thread and in the NIC's threads.

    Parameters
    ----------
    ready
        A descriptor to which a byte is written, and which is closed, once the NIC forwards frames.

    Raises
    ------
    NicError
        If the NIC can't start, or an interface disappears.
    """
    awaited = {*_ENDS, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    with start() as nic:
        if ready is not None:
            os.write(ready, b"+")
            os.close(ready)
        while True:
            came = signal.sigtimedwait(awaited, LOOK_S)
            if came is None:
                nic.check()
            elif came.si_signo == signal.SIGUSR1:
                try:
                    tell(nic.counts())
                except (JobError, OSError) as error:  # the host still needs its network
                    with suppress(OSError):
                        sys.stderr.write(f"gradwire: {error}\n")
            else:
                break
    tell(nic.counts())
