"""``gradwire plan``: the words of the command line, read and checked; ``planning`` does what they say."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gradwire.cli.parser import Parser, algorithm_specs, codec_specs, file_path
from gradwire.collectives import NAMES as ALGORITHMS
from gradwire.errors import SpecError
from gradwire.files import check_writable
from gradwire.page import check_page
from gradwire.plan import MOST_HOSTS
from gradwire.units import parse_count, parse_duration, parse_rate

FARTHEST = 64
"""That of ``planner.scaling``, which cannot be imported without torch."""


def run(arguments: Sequence[str]) -> None:
    """Parse, check, measure, choose and print. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    _check(words)
    _check_line(words)
    _read(words)
    from gradwire.cli.planning import plan  # torch's import takes seconds: after what can be wrong without it

    plan(words)


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire plan",
        usage="gradwire plan --model M --hosts N [options]",
        description="Predict a training step with every plan, and choose one; maybe none at all.",
        epilog="example:\n  gradwire plan --model 25.6M --hosts 8 --rate 1gbit --backward 200ms",
    )
    where = parser.add_argument_group("what is trained, and where")
    _add_training(where)
    _add_line(where)
    _add_plans(parser.add_argument_group("which plans"))
    _add_results(parser.add_argument_group("results"))
    return parser


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="M", help="parameters (25.6M), or a factory package.module:name")
    group.add_argument("--forward", metavar="T", help="of a step, e.g. 12ms (measured of a factory, or 0)")
    group.add_argument("--backward", metavar="T", help="the same; buckets hide behind it")
    group.add_argument("--update", metavar="T", default="0", help="of the optimizer (0)")
    group.add_argument("--gradients", metavar="FILE", help="recorded ones (of a factory, or synthetic)")


def _add_line(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hosts", type=int, metavar="N", help=f"2 to {MOST_HOSTS}")
    group.add_argument("--measured", metavar="FILE", help="the line, by 'gradwire line-rate --json'")
    group.add_argument("--elsewhere", action="store_true", help="FILE may be of another machine")
    group.add_argument("--rate", metavar="R", help="or the line as told, e.g. 10gbit")
    group.add_argument("--latency", metavar="T", help="e.g. 50us, which it is by default")
    group.add_argument("--group-size", type=int, metavar="N", help="hosts that share an uplink")
    group.add_argument("--core", metavar="R", help="rate of an uplink")
    group.add_argument("--shared-machine", action="store_true", help="all hosts are this one (testbed)")


def _add_plans(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--codecs", metavar="LIST", help="allowed ones (those with a relative bound)")
    group.add_argument("--largest-error", type=float, metavar="X", help="of an element of the sum (any)")
    names = ",".join(name for name in ALGORITHMS if name != "hierarchical")
    group.add_argument("--algorithms", metavar="LIST", help=f"({names})")
    group.add_argument(
        "--pipeline", type=int, metavar="K", default=1, help="offer Pipe-SGD, K-1 steps stale (1: not)"
    )

    group.add_argument(
        "--objective",
        choices=("step", "loss"),
        metavar="WHAT",
        help="'step' or 'loss': what is shortest (loss with --gradients)",
    )
    group.add_argument("--scale", metavar="auto", help="offer scales for codecs with absolute bounds, too")
    group.add_argument("--nic", metavar="CODEC", help="of NICs on the way; offer to leave encoding to them")
    group.add_argument("--sharded", type=float, metavar="LR", help="offer Sharded; the learning rate")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--top", type=int, metavar="N", default=10, help="plans to show (10)")
    group.add_argument(
        "--scale-to", type=int, metavar="N", default=FARTHEST, help=f"hosts to look to; 0: not ({FARTHEST})"
    )
    group.add_argument("--json", type=file_path, metavar="FILE", help="everything, for programs")
    group.add_argument("--out", type=file_path, metavar="FILE", help="the plan, for train and all_reduce")
    group.add_argument("--overwrite", action="store_true", help="replace older files")
    group.add_argument("-h", "--help", action="help", help="show this text")


def _check(words: argparse.Namespace) -> None:
    """Refuse at once what would only show at the end."""
    if words.model is None or words.hosts is None:
        missing = [name for name in ("model", "hosts") if getattr(words, name) is None]
        raise SpecError(f"a plan is for a model on some hosts; give --{' and --'.join(missing)}")
    for name, low, high in (("top", 1, 1000), ("scale-to", 0, MOST_HOSTS), ("pipeline", 1, 16)):
        value = getattr(words, name.replace("-", "_"))
        if not low <= value <= high:
            raise SpecError(f"--{name} must be {low} to {high}, but is {value}")
    if words.hosts > MOST_HOSTS:
        raise SpecError(f"--hosts must be 2 to {MOST_HOSTS}, but is {words.hosts}")
    if words.objective == "loss" and words.gradients is None:
        raise SpecError(
            "--objective loss needs the noise of real gradients; record some with gradwire.record_gradients, "
            "and give --gradients FILE"
        )
    if words.json is not None:
        check_writable("--json", words.json, words.overwrite)
        check_page("--json", words.json, words.overwrite)
    if words.out is not None:
        check_writable("--out", words.out, words.overwrite)
    if words.json is not None and words.out is not None and words.json.resolve() == words.out.resolve():
        raise SpecError(f"--json and --out both name {words.out}; name two files")


def _check_line(words: argparse.Namespace) -> None:
    if words.measured is not None and (words.rate is not None or words.latency is not None):
        raise SpecError("--measured has the line's rate and latency; leave out --rate and --latency")
    if words.measured is None and words.rate is None:
        raise SpecError(
            "a plan needs the line: measure it with 'gradwire line-rate --json FILE' and give "
            "--measured FILE, or tell --rate and --latency"
        )
    for rate in (words.rate, words.core):
        parse_rate(rate)
    if words.latency is not None:
        parse_duration(words.latency)


def _read(words: argparse.Namespace) -> None:
    """Put values in the place of words. Raises ``SpecError``."""
    words.codecs = None if words.codecs is None else codec_specs(words.codecs)
    words.algorithms = None if words.algorithms is None else algorithm_specs(words.algorithms)
    for name in ("forward", "backward", "update"):
        text = getattr(words, name)
        setattr(words, name, None if text is None else parse_duration(text))
    words.count = parse_count(words.model)
