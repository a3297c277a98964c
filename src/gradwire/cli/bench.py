"""``gradwire bench``: the words of the command line become options; the benchmarks do the rest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.benchmark.lists import algorithm_specs, codec_specs, geometric, listed, whole_numbers
from gradwire.cli.parser import Parser, chosen, file_path
from gradwire.collectives import NAMES as ALGORITHMS
from gradwire.errors import SpecError
from gradwire.launch.launched import launched_workers
from gradwire.units import parse_size

if TYPE_CHECKING:  # torch's import takes seconds: modules that need it are imported once the words are read
    from gradwire.benchmark.allreduce_run import AllReduceOptions

BENCHMARKS = MappingProxyType(
    {
        "line-rate": "latency and bandwidth between two ranks, by message size",
        "allreduce": "algorithms and codecs, beside torch and beside the theory",
    }
)


def run(arguments: Sequence[str]) -> None:
    """Parse, check and measure. Raises ``GradwireError``."""
    lines = "\n".join(f"  {name:<12}{summary}" for name, summary in BENCHMARKS.items())
    parser = Parser(
        prog="gradwire bench",
        usage="gradwire bench WHAT [options]",
        description="Measure the network, and all-reduces over it, with local processes or as a rank.",
        epilog=f"what:\n{lines}\n\nexample:\n  gradwire bench line-rate --json line.json --plot line.png",
    )
    parser.add_argument("what", metavar="WHAT", choices=BENCHMARKS, help="what to measure, see below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or more after WHAT")
    if not arguments:
        parser.error(f"name what to measure: {', '.join(BENCHMARKS)}")
    what = parser.parse_args(arguments[:1]).what
    (_run_line_rate if what == "line-rate" else _run_allreduce)(arguments[1:])


def _run_line_rate(arguments: Sequence[str]) -> None:
    parser = Parser(
        prog="gradwire bench line-rate",
        usage="gradwire bench line-rate [options]",
        description="Send messages between two ranks, over the link that training uses.",
        epilog="example:\n  gradwire bench line-rate --json line.json --plot line.png",
    )
    group = parser.add_argument_group("messages")
    _add_sizes(group, "1", "64MiB")
    group.add_argument("--repeats", type=int, default=5, metavar="N", help="streams per figure (5)")
    group.add_argument("--time", type=float, default=0.1, metavar="S", help="about, per figure (0.1 s)")
    group.add_argument("--window", type=int, default=16, metavar="N", help="messages under way (16)")
    group = parser.add_argument_group("where")
    group.add_argument("--workers", type=int, metavar="N", help="local processes (2)")
    group.add_argument("--all-pairs", action="store_true", help="every pair of ranks, one after the other")
    _add_network(group)
    _add_outputs(parser.add_argument_group("results"))
    words = parser.parse_args(arguments)
    sizes = _sizes(words)
    words.workers = launched_workers(has_server=False, asked=words.workers) or words.workers
    from gradwire.benchmark.line_rate_run import LineRateOptions, run_line_rate
    from gradwire.timing.measure.line_rate import Effort

    effort = Effort(sizes, words.repeats, words.time, words.window)
    run_line_rate(chosen(LineRateOptions, words, effort=effort))


def _run_allreduce(arguments: Sequence[str]) -> None:
    parser = Parser(
        prog="gradwire bench allreduce",
        usage="gradwire bench allreduce [options]",
        description="Time all-reduces, check every sum, compare with torch's own and with the theory.",
        epilog="example:\n  gradwire bench allreduce --workers 2,4 --codecs identity,quantize:8",
    )
    group = parser.add_argument_group("what")
    names = ",".join(ALGORITHMS)
    group.add_argument("--algorithms", metavar="LIST", default="ring", help=f"{names} (ring)")
    group.add_argument(
        "--codecs", metavar="LIST", default="identity", help="identity,quantize:8,... (identity)"
    )
    _add_sizes(group, "1MiB", "16MiB")
    group.add_argument("--segments", metavar="LIST", help="of frames, in bytes of floats (4MiB)")
    group.add_argument(
        "--data", metavar="D", default="laplace:1e-3", help="laplace:SCALE, normal:SCALE or FILE.pt"
    )
    group.add_argument(
        "--no-torch", dest="torch_too", action="store_false", help="leave out torch's own all-reduce"
    )
    group = parser.add_argument_group("how")
    group.add_argument("--iterations", type=int, default=20, metavar="N", help="timed (20)")
    group.add_argument("--warmup", type=int, default=3, metavar="N", help="not timed (3)")
    group.add_argument(
        "--max-time", dest="most_s", type=float, default=20.0, metavar="S", help="then 3 or more do (20 s)"
    )
    group.add_argument(
        "--pause", dest="pause_s", type=float, default=0.0, metavar="S", help="before each (0 s)"
    )
    group.add_argument(
        "--measured",
        dest="measured_file",
        type=file_path,
        metavar="FILE",
        help="the line, by 'bench line-rate --json'",
    )
    group.add_argument(
        "--no-line-rate",
        dest="measures_line",
        action="store_false",
        help="measure no line, compare with no theory",
    )
    group = parser.add_argument_group("where")
    group.add_argument("--workers", metavar="LIST", help="local processes, e.g. 2,4,8 (2)")
    _add_network(group)
    _add_outputs(parser.add_argument_group("results"))
    words = parser.parse_args(arguments)
    options = _allreduce_options(words)
    from gradwire.benchmark.allreduce_run import run_allreduce

    run_allreduce(options)


def _allreduce_options(words: argparse.Namespace) -> AllReduceOptions:
    if words.measured_file is not None and not words.measures_line:
        raise SpecError("--measured gives the line that --no-line-rate leaves out; leave out one of them")
    asked = None if words.workers is None else whole_numbers("--workers", words.workers)
    launched = launched_workers(has_server=False, asked=asked[0] if asked and len(asked) == 1 else None)
    if launched is not None and asked and len(asked) > 1:
        raise SpecError("--workers names one world or none where the ranks are already started")
    if words.segments is not None:
        words.segments = listed(tuple(parse_size(text) for text in words.segments.split(",")))
    words.algorithms, words.codecs = algorithm_specs(words.algorithms), codec_specs(words.codecs)
    worlds, sizes = asked if launched is None else (launched,), _sizes(words)
    from gradwire.benchmark.allreduce_run import AllReduceOptions
    from gradwire.benchmark.data import DataSpec

    data = DataSpec.parse(words.data)
    return chosen(AllReduceOptions, words, sizes=sizes, worlds=worlds, data=data)


def _add_sizes(group: argparse._ArgumentGroup, low: str, high: str) -> None:
    group.add_argument("--min", metavar="SIZE", default=low, help=f"the smallest ({low})")
    group.add_argument("--max", metavar="SIZE", default=high, help=f"the largest ({high})")
    group.add_argument("--factor", type=int, metavar="N", default=2, help="from one size to the next (2)")
    group.add_argument("--sizes", metavar="LIST", help="these instead, as in 64kB,1MB,16MB")


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--link", metavar="RATE", help="throttle every rank, e.g. 1gbit (no limit)")
    group.add_argument(
        "--timeout", dest="timeout_s", type=float, default=60.0, metavar="S", help="of any wait, in s (60)"
    )


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", dest="json_file", type=file_path, metavar="FILE", help="write the record")
    group.add_argument(
        "--plot", dest="plot_file", type=file_path, metavar="FILE", help="write a picture (PNG)"
    )
    group.add_argument("--overwrite", action="store_true", help="replace older files")
    group.add_argument("--quiet", action="store_true", help="show no progress")
    group.add_argument("-h", "--help", action="help", help="show this text")


def _sizes(words: argparse.Namespace) -> tuple[int, ...]:
    if words.sizes is not None:
        return listed(tuple(parse_size(text) for text in words.sizes.split(",")))
    return geometric(parse_size(words.min), parse_size(words.max), words.factor)
