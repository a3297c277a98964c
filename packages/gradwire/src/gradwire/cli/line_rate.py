"""``gradwire line-rate``: measure latency and bandwidth between two ranks, by message size."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gradwire.cli.lists import geometric, listed
from gradwire.cli.parser import (
    Parser,
    add_json,
    add_overwrite,
    add_timeout,
    add_usual,
    chosen,
    file_path,
    seconds,
)
from gradwire.launch.launched import launched_workers
from gradwire.units import parse_size


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire line-rate``: check the options, and measure. Raises ``GradwireError``."""
    parser = Parser(
        prog="gradwire line-rate",
        usage="gradwire line-rate [options]",
        description="Send messages between two ranks, over the link that training uses.",
        epilog="example:\n  gradwire line-rate --json line.json --plot line.png",
    )
    group = parser.add_argument_group("messages")
    add_sizes(group, "1", "64MiB")
    group.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="streams measured for each figure (default: 5)"
    )
    group.add_argument(
        "--time",
        type=seconds,
        default=0.1,
        metavar="TIME",
        help="approximate time for each figure (default: 100ms)",
    )
    group.add_argument("--window", type=int, default=16, metavar="N", help="messages in flight (default: 16)")
    group = parser.add_argument_group("where")
    group.add_argument("--workers", type=int, metavar="N", help="number of local processes (default: 2)")
    group.add_argument("--all-pairs", action="store_true", help="measure every pair of ranks in turn")
    add_network(group)
    add_outputs(parser.add_argument_group("results"))
    words = parser.parse_args(arguments)
    sizes = sizes_of(words)
    words.workers = launched_workers(has_server=False, asked=words.workers) or words.workers
    from gradwire.line_rate.run import LineRateOptions, run_line_rate
    from gradwire.timing.line_rate import Effort

    effort = Effort(sizes, words.repeats, words.time, words.window)
    run_line_rate(chosen(LineRateOptions, words, effort=effort))


def add_sizes(group: argparse._ArgumentGroup, low: str, high: str) -> None:
    """Add the options for message sizes, with ``low`` and ``high`` as defaults of ``--min`` and ``--max``."""
    group.add_argument("--min", metavar="SIZE", default=low, help=f"smallest message size (default: {low})")
    group.add_argument("--max", metavar="SIZE", default=high, help=f"largest message size (default: {high})")
    group.add_argument(
        "--factor", type=int, metavar="N", default=2, help="factor between message sizes (default: 2)"
    )
    group.add_argument("--sizes", metavar="LIST", help="sizes, instead of a range: 64kB,1MB,16MB")


def add_network(group: argparse._ArgumentGroup) -> None:
    """Add the options for the network: ``--rate`` and ``--timeout``."""
    group.add_argument(
        "--rate",
        dest="link",
        metavar="RATE",
        help="rate of each host's link (default: unlimited)",
    )
    add_timeout(group, 60.0, "for each wait")


def add_outputs(group: argparse._ArgumentGroup) -> None:
    """Add the options for the files of results."""
    add_json(group, "json_file")
    group.add_argument(
        "--plot", dest="plot_file", type=file_path, metavar="FILE", help="write a plot to this file (PNG)"
    )
    add_overwrite(group)
    add_usual(group)


def sizes_of(words: argparse.Namespace) -> tuple[int, ...]:
    """Return the message sizes that the options describe. Raises ``SpecError``."""
    if words.sizes is not None:
        return listed(tuple(parse_size(text) for text in words.sizes.split(",")))
    return geometric(parse_size(words.min), parse_size(words.max), words.factor)
