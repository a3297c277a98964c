"""``gradwire report``: the records of ``gradwire reproduce`` as one HTML file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradwire.cli.parser import Parser, file_path, folder_path
from gradwire.experiments.page import page, read_all
from gradwire.experiments.papers import EXHIBITS, PAPERS
from gradwire.files import check_writable, write_files

PAGE = "report.html"
FOLDER = Path("runs/reproduce-quick")


def run(arguments: Sequence[str]) -> None:
    """Parse, read, and write. Raises ``GradwireError``."""
    words = _parser().parse_args(arguments)
    recorded = read_all(words.folder, EXHIBITS)
    out = words.out or words.folder / PAGE
    check_writable("--out", out, words.overwrite)
    write_files({out: page(recorded, EXHIBITS, PAPERS).encode()})
    sys.stdout.write(f"the page is {out}\n")


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire report",
        usage="gradwire report [DIR] [options]",
        description="Write the records of gradwire reproduce as one HTML file: the verdicts, and each\n"
        "table and figure with what was measured beside what was published. The file\n"
        "loads nothing from the network, and the same records give the same bytes.",
        epilog="example:\n  gradwire report runs/reproduce-full --out report.html",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        type=folder_path,
        default=FOLDER,
        help=f"folder of the records ({FOLDER})",
    )
    parser.add_argument("--out", type=file_path, metavar="FILE", help=f"the file (DIR/{PAGE})")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument("-h", "--help", action="help", help="show this text")
    return parser
