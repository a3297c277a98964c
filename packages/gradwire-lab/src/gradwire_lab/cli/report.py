"""``gradwire report``: the HTML page of a record, or of all records of ``gradwire reproduce``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradwire.cli.parser import Parser, add_overwrite, add_usual, file_path
from gradwire.errors import GradwireError, JobError, SpecError, shown
from gradwire.files import check_writable, read_text, write_files
from gradwire.page import PAGE, RECORD, beside, kinds, pages_of, write_page
from gradwire.records import read_object, read_record
from gradwire_lab.experiments import EXPERIMENTS
from gradwire_lab.experiments import page as experiment
from gradwire_lab.experiments.page import page, read_all
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS

FOLDER = Path("runs/reproduce-quick")
EXPERIMENT = "gradwire.experiment-"
REMEDY = "repeat the command that wrote the record"


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire report``. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    out = words.html or place(words.path)
    check_writable("--html", out, words.overwrite)
    write_files({out: make(words.path).encode()})
    sys.stdout.write(f"the page is {out}\n")


def write(path: Path) -> bool:
    """Write a record's page, print the page's path, and return whether it was written; errors are printed."""
    return write_page(place(path), lambda: make(path))


def place(path: Path) -> Path:
    """Return the path of the page for a record, or for the records in a folder."""
    return path / PAGE if path.is_dir() else beside(path)


def make(path: Path) -> str:
    """Return the page of a record, or of the records in a folder. Raises ``GradwireError``."""
    if path.is_dir() and (path / RECORD).exists():
        path = path / RECORD
    try:
        if path.is_file():
            return _of_record(path)
        return page(read_all(path, EXHIBITS), EXHIBITS, PAPERS)
    except (GradwireError, ImportError):
        raise
    except Exception as error:  # a damaged record can break any line of a page
        why = f"{type(error).__name__}: {error}"
        raise JobError(f"{path} is damaged, or from a different gradwire ({why}); {REMEDY}") from error


def _of_record(path: Path) -> str:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(
            f"the record {path} cannot be read: {getattr(error, 'strerror', error)}; {REMEDY}"
        ) from error
    fields = read_object(text, str(path))
    schema = str(fields.get("schema"))
    kind = schema.rpartition("/")[0]
    if kind.startswith(EXPERIMENT):
        return experiment.page_of(fields, [*EXPERIMENTS.values()], EXHIBITS)
    pages = pages_of(kind)
    if pages is None:
        raise SpecError(
            f"expected a record of {', '.join(kinds())}, or an experiment, got the schema "
            f"{shown(schema)[1:-1]} in {path}; pass another record"
        )
    newest = next(schema for schema in pages if schema.rpartition("/")[0] == kind)
    return pages[newest](read_record(path, newest, "record", REMEDY))


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire report",
        usage="gradwire report [PATH] [options]",
        description="Write a record as one HTML file: the verdict, sortable tables, and plots. train,\n"
        "experiment, and reproduce also write it, as do bench, plan, doctor, and\n"
        "profile with --json. The file loads nothing from the network, and the same\n"
        "record gives the same bytes.",
        epilog="example:\n  gradwire report runs/reproduce-full --html report.html",
    )
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        type=file_path,
        default=FOLDER,
        help=f"a record, its folder, or a folder of gradwire reproduce (default: {FOLDER})",
    )
    parser.add_argument(
        "--html",
        type=file_path,
        metavar="FILE",
        help=f"file of the page (default: {PAGE} next to the record)",
    )
    add_overwrite(parser)
    add_usual(parser)
    return parser


def add_across_commits(parser: Parser) -> None:
    """Add ``--across-commits``."""
    parser.add_argument(
        "--across-commits",
        action="store_true",
        help="also resume records of other commits (noted in the record)",
    )
