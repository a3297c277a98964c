"""``gradwire plan``: the words of the command line become a question; the planner answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size

import torch

from gradwire.benchmark.lists import algorithm_specs, codec_specs
from gradwire.cli.parser import Parser
from gradwire.collectives import NAMES as ALGORITHMS
from gradwire.errors import SpecError
from gradwire.files import check_writable, write_files
from gradwire.machine import cores
from gradwire.planner.calibration import Show
from gradwire.planner.choice import Choice, Input
from gradwire.planner.model import load_factory, measure_model, parse_count
from gradwire.planner.planning import answer, as_workload, pose
from gradwire.planner.record import load_gradients
from gradwire.planner.report import lines
from gradwire.planner.scaling import FARTHEST, narrowed, scaling, worlds_around
from gradwire.planner.site import Site
from gradwire.planner.workload import Workload
from gradwire.units import format_duration, format_size, parse_duration, parse_rate

MOST_HOSTS = 256


def run(arguments: Sequence[str]) -> None:
    """Parse, check, measure, choose and print. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    _check(words)
    site = _site(words)
    site.find_line()
    codecs = None if words.codecs is None else codec_specs(words.codecs)
    algorithms = None if words.algorithms is None else algorithm_specs(words.algorithms)
    gradients = None if words.gradients is None else load_gradients(words.gradients)
    model = _model(words, site)
    if gradients is None and model.gradients:
        gradients = list(model.gradients)
    with _progress() as show:
        question, inputs = pose(
            site,
            model.workload,
            codecs=codecs,
            algorithms=algorithms,
            pipelines=(1,) if words.pipeline == 1 else (1, words.pipeline),
            largest_error=words.largest_error,
            gradients=gradients,
            most_hosts=words.scale_to,
            show=show,
        )
    known = {each.name for each in model.inputs}
    others = (each for each in inputs if each.name not in known)
    choice = answer(question, site.hosts, (*model.inputs, *others))
    if words.scale_to:
        points = scaling(narrowed(question, choice.prediction), worlds_around(site.hosts, words.scale_to))
        choice = replace(choice, scaling=tuple(points))
    sys.stdout.write("\n".join(lines(choice, words.top)) + "\n")
    _write(words, choice)


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire plan",
        usage="gradwire plan --model M --hosts N [options]",
        description="Predict a training step with every plan, and choose one; maybe none at all.",
        epilog="example:\n  gradwire plan --model 25.6M --hosts 8 --rate 1gbit --backward 200ms",
    )
    _add_training(parser.add_argument_group("what is trained"))
    _add_line(parser.add_argument_group("where"))
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
    group.add_argument("--measured", metavar="FILE", help="the line, by 'gradwire bench line-rate --json'")
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


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--top", type=int, metavar="N", default=10, help="plans to show (10)")
    group.add_argument(
        "--scale-to", type=int, metavar="N", default=FARTHEST, help=f"hosts to look to; 0: not ({FARTHEST})"
    )
    group.add_argument("--json", type=_file, metavar="FILE", help="everything, for programs")
    group.add_argument("--out", type=_file, metavar="FILE", help="the plan, for train and all_reduce")
    group.add_argument("-h", "--help", action="help", help="show this text")


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("name a file")
    return Path(text)


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
    if words.json is not None:
        check_writable("--json", words.json)
    if words.out is not None:
        check_writable("--out", words.out)
    if words.json is not None and words.out is not None and words.json.resolve() == words.out.resolve():
        raise SpecError(f"--json and --out both name {words.out}; name two files")


def _site(words: argparse.Namespace) -> Site:
    if words.measured is not None and (words.rate is not None or words.latency is not None):
        raise SpecError("--measured has the line's rate and latency; leave out --rate and --latency")
    if words.measured is None and words.rate is None:
        raise SpecError(
            "a plan needs the line: measure it with 'gradwire bench line-rate --json FILE' and give "
            "--measured FILE, or tell --rate and --latency"
        )
    for rate in (words.rate, words.core):
        parse_rate(rate)
    return Site(
        words.hosts,
        line=words.measured,
        elsewhere=words.elsewhere,
        rate=words.rate,
        latency=words.latency,
        group_size=words.group_size,
        core_rate=words.core,
        shared_machine=True if words.shared_machine else None,
    )


@dataclass(frozen=True)
class _Model:
    workload: Workload
    inputs: tuple[Input, ...]
    gradients: tuple[torch.Tensor, ...] = ()


def _model(words: argparse.Namespace, site: Site) -> _Model:
    """Return what is trained; a factory with example inputs is measured here."""
    told = [None if text is None else parse_duration(text) for text in (words.forward, words.backward)]
    update_s = parse_duration(words.update)
    count = parse_count(words.model)
    if count is not None:
        workload = as_workload(count, told[0] or 0.0, told[1] or 0.0, update_s)
        return _Model(workload, (_sizes(workload, "told"),))
    model, example = load_factory(words.model)
    if example is None:
        workload = as_workload(model, told[0] or 0.0, told[1] or 0.0, update_s)
        return _Model(workload, (_sizes(workload, words.model),))
    measured = measure_model(model, example, site.threads)
    slower = max(1.0, site.hosts * site.threads / cores()) if site.is_shared else 1.0
    forward_s, backward_s = (
        slower * seconds if text is None else text
        for text, seconds in zip(told, (measured.forward_s, measured.backward_s), strict=True)
    )
    workload = as_workload(model, forward_s, backward_s, update_s)
    names = [name for name, text in zip(("forward", "backward"), told, strict=True) if text is None]
    source = f"{' and '.join(names)} measured here" if names else "told"
    return _Model(
        workload,
        (_sizes(workload, words.model), Input("computation", _passes(workload), source)),
        measured.gradients,
    )


def _passes(workload: Workload) -> str:
    seconds = {
        "forward": workload.forward_s,
        "backward": workload.backward_s,
        "update": workload.update_s,
    }
    return ", ".join(f"{name} {format_duration(each)}" for name, each in seconds.items())


def _sizes(workload: Workload, source: str) -> Input:
    return Input("model", f"{workload.count:,} parameters, {format_size(workload.nbytes)}", source)


@contextmanager
def _progress() -> Iterator[Show]:
    """Give a function that draws a bar on a terminal's standard error; elsewhere nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _what: None
        return

    def show(done: int, total: int, what: str) -> None:
        bar = "#" * (24 * done // max(1, total))
        text = f"measuring codecs [{bar:<24}] {done}/{total} {what}"
        sys.stderr.write(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}")  # a second line would stay
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _write(words: argparse.Namespace, choice: Choice) -> None:
    files: dict[Path, bytes] = {}
    if words.json is not None:
        files[words.json] = choice.to_json().encode()
    if words.out is not None:
        files[words.out] = (choice.plan.to_json() + "\n").encode()
    write_files(files)
    for path in files:
        sys.stdout.write(f"wrote {path}\n")
