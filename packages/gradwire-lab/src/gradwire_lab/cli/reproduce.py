"""``gradwire reproduce``: measure counterparts of the papers' tables and figures, with verdicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradwire.cli.parser import Parser, add_folder, add_usual
from gradwire.errors import JobError
from gradwire.line_rate.display import print_line
from gradwire.tables import WIDTH, Column, Table, lines, show
from gradwire_lab.cli.report import add_across_commits, write
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS, chosen
from gradwire_lab.experiments.papers.reproduce import failures, report, reproduce, seconds_in_words

INDENT = "  "


def run(arguments: Sequence[str]) -> int:
    """Run the command; return 1 if a figure depends on a run that didn't learn. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    if words.list:
        blank = (Column.of_text(""), Column.of_text(""))
        show(Table(blank, [(each.name, each.experiment.question) for each in chosen(words.paper)]))
        return 0
    exhibits = chosen(words.paper)
    out = words.out or Path("runs") / f"reproduce-{'full' if words.full else 'quick'}"
    try:
        judged = reproduce(
            exhibits,
            out,
            (lambda _: None) if words.quiet else print_line,
            full=words.full,
            overwrite=words.overwrite,
            across_commits=words.across_commits,
        )
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C or another signal
        sys.stderr.write(f"gradwire: the measurements so far are in {out}; repeat the command to resume\n")
        raise
    show("", *report(judged, PAPERS))
    took = seconds_in_words(judged)
    sys.stdout.write(f"\n{took}\nthe records are in {out}\n" if took else f"\nthe records are in {out}\n")
    write(out)
    failed = [each for each in judged if each.failure]
    if failed:
        names = ", ".join(each.exhibit.name for each in failed)
        raise JobError(
            f"{len(failed)} of {len(judged)} exhibits failed ({names}); "
            "fix the errors above, and repeat the command"
        )
    dead = failures(judged)
    if dead:
        sys.stderr.write(
            f"gradwire: {len(dead)} of the figures are invalid, such as {dead[0]}: they depend on training "
            "runs that did not learn; see the report for the required accuracies\n"
        )
    return 1 if dead else 0


def _parser() -> Parser:
    table = Table((Column.of_text(""), Column.of_text("")), [*PAPERS.items()])
    listed = "".join(f"{INDENT}{line}\n" for line in lines(table, width=WIDTH - len(INDENT)))
    parser = Parser(
        prog="gradwire reproduce",
        usage="gradwire reproduce [PAPER] [options]",
        description="Measure the counterparts of the papers' tables and figures, and print them\n"
        f"with the published figures and a verdict on each ({len(EXHIBITS)} exhibits). To resume\n"
        "after an interruption, repeat the command.",
        epilog=f"papers:\n{listed}\nexample:\n  gradwire reproduce study --quick",
    )
    parser.add_argument(
        "paper", metavar="PAPER", nargs="?", help="a paper, or a name from --list (default: all)"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", action="store_true", help="small sizes, in minutes on two cores (the default)"
    )
    length.add_argument("--full", action="store_true", help="larger sizes and more samples, in hours")
    add_folder(parser, "runs/reproduce-quick")
    add_across_commits(parser)
    parser.add_argument("--list", action="store_true", help="list the names, with their questions")
    add_usual(parser)
    return parser
