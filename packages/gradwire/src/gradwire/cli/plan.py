"""``gradwire plan``: choose the fastest plan for a model and network, print the choice, and write it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.cli.lists import algorithm_specs, codec_specs
from gradwire.cli.parser import Parser, add_json, add_options, add_overwrite, add_save, add_usual, check_range
from gradwire.cli.progress import measuring
from gradwire.errors import SpecError
from gradwire.files import write_files
from gradwire.page import beside, check_results, keep
from gradwire.plan import MOST_HOSTS
from gradwire.planner.request import FARTHEST, PlanRequest
from gradwire.tables import show
from gradwire.units import parse_count, parse_duration

if TYPE_CHECKING:
    from gradwire.planner.choice import Choice

_WHERE = (
    *("model", "forward_s", "backward_s", "update_s", "gradients"),
    *("hosts", "line", "elsewhere", "rate", "latency", "group_size", "core_rate", "shared_machine"),
)
_WHICH = (
    *("codecs", "largest_error", "algorithms", "pipelines", "most_lanes"),
    *("objective", "scale", "nic", "sharded_lr"),
)
_READ: MappingProxyType[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "model": lambda text: parse_count(text) or text,
        "forward_s": parse_duration,
        "backward_s": parse_duration,
        "update_s": parse_duration,
        "gradients": Path,
        "line": Path,
        "codecs": codec_specs,
        "algorithms": algorithm_specs,
        "pipelines": lambda most: (1,) if most == 1 else (1, most),
    }
)
"""The functions that convert an option's text to a field of the request; other texts stay as they are."""


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire plan``: choose a plan, print the plan, and write it. Raises ``GradwireError``."""
    words = parser().parse_args(arguments)
    _check(words)
    request = read_request(words)
    from gradwire.planner.choice import choose  # imports torch, which takes seconds
    from gradwire.planner.report import report

    with measuring(words.quiet) as progress:
        choice = choose(request, progress)
    show(*report(choice, words.top))
    _write(words, choice)


def parser() -> Parser:
    """Return the parser of ``gradwire plan``."""
    made = Parser(
        prog="gradwire plan",
        usage="gradwire plan --model M --hosts N [options]",
        description="Predict the step time of every plan, and choose one (or no compression).",
        epilog="example:\n  gradwire plan --model 25.6M --hosts 8 --rate 1gbit --backward 200ms",
    )
    add_options(made.add_argument_group("model, hosts, and network"), PlanRequest, _WHERE)
    add_options(made.add_argument_group("allowed plans"), PlanRequest, _WHICH)
    group = made.add_argument_group("results")
    text = "number of plans to show (default: 10)"
    group.add_argument("--top", type=int, metavar="N", default=10, help=text)
    add_options(group, PlanRequest, ("most_hosts",))
    add_json(group)
    add_save(group)
    add_overwrite(group)
    add_usual(group)
    made.set_defaults(pipelines=1, most_hosts=FARTHEST)
    return made


def read_request(words: argparse.Namespace) -> PlanRequest:
    """Return the request that the options of ``parser`` describe. Raises ``SpecError``."""
    given = {name: getattr(words, name) for name in (*_WHERE, *_WHICH, "most_hosts")}
    given = {name: value for name, value in given.items() if value is not None}
    read = {name: convert(given[name]) for name, convert in _READ.items() if name in given}
    return PlanRequest.of(**given | read)


def _check(words: argparse.Namespace) -> None:
    """Raise ``SpecError`` or ``JobError`` for mistakes in options before time is spent on measuring."""
    missing = [name for name in ("model", "hosts") if getattr(words, name) is None]
    if missing:
        raise SpecError(
            f"expected a model and a number of hosts, got no --{' and no --'.join(missing)}; pass both"
        )
    check_range("--top", words.top, 1, 1000)
    check_range("--scale-to", words.most_hosts, 0, MOST_HOSTS)
    check_range("--pipeline", words.pipelines, 1, 16)
    if words.hosts > MOST_HOSTS:
        raise SpecError(f"expected 2 to {MOST_HOSTS} for --hosts, got {words.hosts}; pass fewer hosts")
    check_results(words.json, "--save", words.save, words.overwrite)


def _write(words: argparse.Namespace, choice: Choice) -> None:
    from gradwire.planner.report import page_of

    plan = {} if words.save is None else {words.save: choice.plan.to_text().encode()}
    if words.json is None:
        write_files(plan)
    elif keep(words.json, choice.record(), page_of, plan, quiet=True):
        plan[beside(words.json)] = b""
    for path in filter(None, (words.json, *plan)):
        sys.stdout.write(f"wrote {path}\n")
