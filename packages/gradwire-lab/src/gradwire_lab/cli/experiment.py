"""``gradwire experiment``: list the experiments, or run one of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gradwire.cli.parser import Parser, add_folder, add_usual
from gradwire.tables import WIDTH, Column, Table, lines
from gradwire_lab.cli.report import add_across_commits, write
from gradwire_lab.experiments import EXPERIMENTS, Experiment, perform

INDENT = "  "


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire experiment``. Raises ``GradwireError``."""
    questions = [(name, experiment.question) for name, experiment in EXPERIMENTS.items()]
    listed = lines(Table((Column.of_text(""), Column.of_text("")), questions), width=WIDTH - len(INDENT))
    parser = Parser(
        prog="gradwire experiment",
        usage="gradwire experiment [NAME [options]]",
        description="Measure the answer to a question on testbeds with rate-limited links. To resume\n"
        "an interrupted experiment, repeat its command with its folder as --out.",
        epilog="names:\n" + "".join(f"{INDENT}{line}\n" for line in listed)
        + "\nexample:\n  gradwire experiment scaling --hosts 2,4 --nbytes 16MB",
    )  # fmt: skip
    parser.add_argument("name", metavar="NAME", nargs="?", choices=EXPERIMENTS, help="one of the names below")
    parser.add_argument("--list", action="store_true", help="list the names, with their questions")
    parser.add_argument("-h", "--help", action="help", help="show this text, or the options of NAME")
    words = parser.parse_args(arguments[:1])
    if words.name is not None:
        _perform(EXPERIMENTS[words.name], arguments[1:])
        return
    parser.parse_args(arguments)
    sys.stdout.write("".join(f"{line}\n" for line in listed))


def _perform(experiment: Experiment[Any], arguments: Sequence[str]) -> None:
    name = experiment.name
    parser = Parser(
        prog=f"gradwire experiment {name}",
        usage=f"gradwire experiment {name} [options]",
        description=f"{experiment.question[0].upper()}{experiment.question[1:]}",
        epilog=f"example:\n  gradwire experiment {name} --out runs/{name}",
    )
    experiment.add_arguments(parser)
    add_folder(parser, f"runs/{name}-TIME")
    add_across_commits(parser)
    add_usual(parser)
    words = parser.parse_args(arguments)
    options = experiment.read(words)
    out = words.out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    perform(
        experiment,
        options,
        out,
        overwrite=words.overwrite,
        across_commits=words.across_commits,
        quiet=words.quiet,
    )
    sys.stdout.write(f"the record is in {out}\n")
    write(out)
