"""``gradwire bench``: its command line, and the benchmark that it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.cli import line_rate
from gradwire.cli.lists import algorithm_specs, codec_specs, listed, whole_numbers
from gradwire.cli.parser import Parser, add_values, chosen, file_path, seconds
from gradwire.collectives import NAMES as ALGORITHMS
from gradwire.errors import SpecError
from gradwire.launch.launched import launched_workers
from gradwire.units import parse_size

if TYPE_CHECKING:  # these modules import torch, which takes seconds
    from gradwire_lab.benchmark.allreduce_run import AllReduceOptions

BENCHMARKS = MappingProxyType({"allreduce": "algorithms and codecs, torch's all-reduce, and theory"})


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire bench``. Raises ``GradwireError``."""
    lines = "\n".join(f"  {name:<12}{summary}" for name, summary in BENCHMARKS.items())
    parser = Parser(
        prog="gradwire bench",
        usage="gradwire bench WHAT [options]",
        description="Measure all-reduces over the network, with local processes or as a rank.",
        epilog=f"what:\n{lines}\n\nexample:\n  gradwire bench allreduce --codecs identity,fp8",
    )
    parser.add_argument("what", metavar="WHAT", choices=BENCHMARKS, help="one of the benchmarks below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or the options of WHAT")
    if not arguments:
        parser.error(f"expected a benchmark, got none; pass one of {', '.join(BENCHMARKS)}")
    parser.parse_args(arguments[:1])
    _run_allreduce(arguments[1:])


def _run_allreduce(arguments: Sequence[str]) -> None:
    parser = Parser(
        prog="gradwire bench allreduce",
        usage="gradwire bench allreduce [options]",
        description="Time all-reduces, check every sum, and compare with torch and with theory.",
        epilog="example:\n  gradwire bench allreduce --workers 2,4 --codecs identity,quantize:8",
    )
    group = parser.add_argument_group("what")
    add_values(
        group,
        ("--algorithms", "LIST", None, "ring", f"algorithms: {','.join(ALGORITHMS)} (default: ring)"),
        ("--codecs", "LIST", None, "identity", "codecs, such as identity,quantize:8 (default: identity)"),
    )
    line_rate.add_sizes(group, "1MiB", "16MiB")
    values = "values to exchange: laplace:SCALE, normal:SCALE or FILE.pt"
    add_values(
        group,
        ("--segments", "LIST", None, None, "segment sizes, in bytes of float32 (default: 4MiB)"),
        ("--values data", "V", None, "laplace:1e-3", values),
    )
    group.add_argument(
        "--no-torch", dest="torch_too", action="store_false", help="omit torch's own all-reduce"
    )
    group = parser.add_argument_group("how")
    measured = "measured link, from 'gradwire line-rate --json FILE'"
    add_values(
        group,
        ("--iterations", "N", int, 20, "maximum measured steps (default: 20)"),
        ("--warm-up warmup", "N", int, 3, "steps before the measured steps (default: 3)"),
        ("--max-time most_s", "TIME", seconds, 20.0, "time limit, after at least 3 steps (default: 20s)"),
        ("--pause pause_s", "TIME", seconds, 0.0, "pause before each step (default: 0)"),
        ("--measured measured_file", "FILE", file_path, None, measured),
    )
    group.add_argument(
        "--no-line-rate",
        dest="measures_line",
        action="store_false",
        help="omit the measurement of the links, and the theory",
    )
    group = parser.add_argument_group("where")
    group.add_argument(
        "--workers", metavar="N", help="number of local processes, or several: 2,4,8 (default: 2)"
    )
    line_rate.add_network(group)
    line_rate.add_outputs(parser.add_argument_group("results"))
    words = parser.parse_args(arguments)
    options = _allreduce_options(words)
    from gradwire_lab.benchmark.allreduce_run import run_allreduce

    run_allreduce(options)


def _allreduce_options(words: argparse.Namespace) -> AllReduceOptions:
    if words.measured_file is not None and not words.measures_line:
        raise SpecError("expected --measured or --no-line-rate, got both; omit one")
    asked = None if words.workers is None else whole_numbers("--workers", words.workers)
    launched = launched_workers(has_server=False, asked=asked[0] if asked and len(asked) == 1 else None)
    if launched is not None and asked and len(asked) > 1:
        raise SpecError(
            f"expected at most one value for --workers under a launcher, got {words.workers}; omit --workers"
        )
    if words.segments is not None:
        words.segments = listed(tuple(parse_size(text) for text in words.segments.split(",")))
    words.algorithms, words.codecs = algorithm_specs(words.algorithms), codec_specs(words.codecs)
    worlds, sizes = asked if launched is None else (launched,), line_rate.sizes_of(words)
    from gradwire_lab.benchmark.allreduce_run import AllReduceOptions
    from gradwire_lab.benchmark.data import DataSpec

    data = DataSpec.parse(words.data)
    return chosen(AllReduceOptions, words, sizes=sizes, worlds=worlds, data=data)
