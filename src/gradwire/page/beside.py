"""Where a record's page is, and how it gets there: a page that can't be written never fails the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradwire.errors import JobError
from gradwire.files import write_files
from gradwire.records import to_json

RECORD, PAGE = "record.json", "report.html"
NO_FILES: Mapping[Path, bytes] = {}


def beside(record: Path) -> Path:
    """Return the path of a record's page: ``report.html`` for ``record.json``, else the same name as HTML.

    Examples
    --------
    >>> beside(Path("runs/record.json")), beside(Path("line.json"))
    (PosixPath('runs/report.html'), PosixPath('line.html'))
    """
    if record.name == RECORD:
        return record.with_name(PAGE)
    return record.with_name(f"{record.name if record.suffix == '.html' else record.stem}.html")


def check_page(option: str, record: Path, overwrite: bool) -> None:
    """Raise ``JobError``, which names the option, if a page is there already, and may not be replaced."""
    page = beside(record)
    if page.exists() and not overwrite:
        raise JobError(
            f"{option} {record} gets a page beside it, but {page} exists already; name another file, or say "
            "--overwrite"
        )


def keep(
    path: Path,
    record: Mapping[str, object],
    page_of: Callable[[Mapping[str, Any]], str],
    others: Mapping[Path, bytes] = NO_FILES,
    *,
    quiet: bool = False,
) -> bool:
    """Write a record with other files, all or none, and then its page; return whether that is there.

    Raises ``JobError`` for all but the page.
    """
    text = to_json(record)
    write_files({path: text.encode(), **others})
    return write_page(beside(path), lambda: page_of(json.loads(text)), quiet=quiet)


def write_page(page: Path, make: Callable[[], str], *, quiet: bool = False) -> bool:
    """Make a page, write it, and say where; return whether it is there.

    What goes wrong is one sentence on standard error: what was measured counts, and its record has it all.
    """
    try:
        write_files({page: make().encode()})
    except Exception as error:
        with suppress(OSError):
            page.unlink()  # an older one would tell of another run
        sys.stderr.write(f"gradwire: {page} was not written: {str(error) or type(error).__name__}\n")
        return False
    if not quiet:
        sys.stdout.write(f"the page is {page}\n")
    return True
