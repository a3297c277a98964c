"""The page of a record: one self-contained HTML file next to the record.

A ``Report`` is data: the verdict, then sections of tables, paragraphs, and pictures. The template
``report.html.j2`` in this folder renders it as HTML. Equal records have pages of equal bytes, because a page
contains no time, path, or random name.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire import plugins
from gradwire.errors import JobError, SpecError
from gradwire.files import STANDARD_OUTPUT, check_writable, write_files
from gradwire.page.picture import Picture as Picture
from gradwire.page.picture import can_draw, draw
from gradwire.records import to_json
from gradwire.tables import Column, Table
from gradwire.version import how_to_install

if TYPE_CHECKING:
    from jinja2 import Template
    from typing_extensions import Self


# Strings with attributes that only pages use. On a terminal, tables show the plain strings.


class Mark(str):
    """A word that states a verdict, with a colour, and a sign for readers who can't see the colour.

    ``tone`` is the name of a colour in the template: good, near, caution, bad, or none.
    """

    __slots__ = ("sign", "tone")
    sign: str
    tone: str

    def __new__(cls, word: str, sign: str, tone: str) -> Self:
        """Return a ``Mark`` of the word ``word``."""
        made = super().__new__(cls, word)
        made.sign, made.tone = sign, tone
        return made


class PageLink(str):
    """A text that links to a section of the same page, whose id is ``target``."""

    __slots__ = ("target",)
    target: str

    def __new__(cls, text: str, target: str) -> Self:
        """Return a ``PageLink`` with the text ``text``."""
        made = super().__new__(cls, text)
        made.target = target
        return made


class Number(str):
    """A table cell that is sorted by ``key`` instead of by its text, or last if ``key`` is None.

    ``several`` contains the lines below the text, such as the values of which the text is the average.
    """

    __slots__ = ("key", "several")
    key: float | None
    several: Sequence[str]

    def __new__(cls, text: str, key: float | None, several: Sequence[str] = ()) -> Self:
        """Return a ``Number`` with the text ``text``."""
        made = super().__new__(cls, text)
        made.key, made.several = key, several
        return made


class Note(str):
    """A paragraph in small print."""

    __slots__ = ()


@dataclass(frozen=True)
class Details:
    """A list that is hidden behind its summary until the reader opens it."""

    summary: str
    items: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A heading and its content, which readers can fold and unfold. A section without parts isn't shown."""

    heading: str
    parts: Sequence[Part]
    link: str = ""  # the text from which the section's id is made; by default, the heading
    is_open: bool = False  # whether it is unfolded at first, for example because the reader must act on it

    @property
    def name(self) -> str:
        """The section's id, which links refer to."""
        return re.sub(r"\W+", "-", (self.link or self.heading).lower()).strip("-")


Part = str | tuple[str, Table] | Picture | Details | Section
"""A paragraph; a table with its caption; a picture; a folded list; a section of the next level."""


@dataclass(frozen=True)
class Report:
    """The content of a page: the verdict, then one picture, then folded sections."""

    title: str  # the run in a few words
    verdict: str  # its result in a sentence
    sections: Sequence[Section]
    hero: Picture | None = None  # the main picture, which illustrates the verdict


def render(report: Report, record: Mapping[str, Any]) -> str:
    """Return the HTML file of a report, with the record's machine, versions, and options."""
    options = record.get("options")
    notes = [Note(options_in_words(options))] if options else []
    return render_all(report, [(str(record.get("schema")), record)], notes)


def render_all(
    report: Report, records: Sequence[tuple[str, Mapping[str, Any]]], notes: Sequence[Note] = ()
) -> str:
    """Return the HTML file of a report on several records, given as pairs of a name and the fields."""
    origin = Section("Machine and versions", [*made_with(records), *notes])
    sections = [each for each in (*report.sections, origin) if each.parts]
    without = "" if can_draw() else WITHOUT_PLOTS.format(remedy=how_to_install("plots"))
    return _template("report.html.j2").render(report=report, sections=sections, without_plots=without)


WITHOUT_PLOTS = "The page has no plots, because matplotlib isn't installed; {remedy}, and repeat the command."
"""The note in place of a page's main picture."""


def in_notebook(title: str, *parts: str | Table | Mapping[str, Any]) -> str:
    """Return a title, paragraphs, tables, and JSON objects as HTML for a notebook (``_repr_html_``)."""
    shown: list[str | Table] = []
    for part in parts:
        if isinstance(part, Mapping):
            rows = [(name, "none" if value is None else plain(value)) for name, value in part.items()]
            part = Table((Column.of_text("field"), Column.of_text("value")), rows)
        shown.append(part)
    return _template("notebook.html.j2").render(title=title, parts=shown)


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(draw=draw, sort_key=sort_key)
    for kind in (Mark, PageLink, Number, Note, Details, Section, Picture):
        environment.tests[f"a_{kind.__name__.lower()}"] = kind.__instancecheck__
    return environment.get_template(name)


# The origin of records: the machine, the versions, the commit.

MADE_WITH = ("machine", "versions", "commit", "commits")
"""The fields of a record that describe how the record was made."""


def made_with(records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Part]:
    """Return tables of the machine, versions, and commits of records; equal values share a table."""
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, fields in records:
        same = json.dumps([fields.get(each) for each in MADE_WITH], sort_keys=True)
        groups.setdefault(same, []).append((name, fields))
    columns = (Column.of_text("what"), Column.of_text("value"))
    parts: list[Part] = []
    for group in groups.values():
        caption = f"Record{'s' * (len(group) > 1)} of {', '.join(name for name, _ in group)}"
        parts.append((caption, Table(columns, _origin(group[0][1]))))
    return parts


def options_in_words(options: Mapping[str, Any]) -> str:
    """Format a record's options as a sentence."""
    said = "; ".join(f"{name} {'none' if value is None else plain(value)}" for name, value in options.items())
    return f"Options: {said or 'none'}."


def plain(value: object) -> str:
    """Format a JSON value as text for people."""
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _origin(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the table rows on a record's origin: a name and a value for each entry of its fields."""
    lines: list[tuple[str, str]] = []
    for name in MADE_WITH:
        if name.startswith("commit") and name not in fields:
            continue  # absent from most kinds of records
        value = fields.get(name)
        if name == "commits" and isinstance(value, Mapping):
            value = {"rows by commit": value}
        several = value if isinstance(value, Mapping) else {name: value}
        lines += [(key, plain(each)) for key, each in several.items()]
    return lines


# The numbers by which the page's script sorts the rows of a table.

_FIGURE = re.compile(r"[^\d-]*(-?[\d.]+(?:e[+-]?\d+)?) ?([A-Za-zµ]*)")
_UNITS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


def sort_key(cell: str, column: Column) -> str | None:
    """Return a cell's sort key: a number as text, "" for an unknown number, or None in a column of text."""
    if column.is_text and not isinstance(cell, Number):
        return None
    key = cell.key if isinstance(cell, Number) else magnitude(cell)
    return "" if key is None or not math.isfinite(key) else repr(float(key))


def magnitude(text: str) -> float | None:
    """Return the first number in a string, scaled by its unit's prefix, or None without a number.

    Examples
    --------
    >>> magnitude("250ms"), magnitude("4KiB"), magnitude("3.5x"), magnitude("100mbit"), magnitude("-")
    (0.25, 4096.0, 3.5, 100000000.0, None)
    """
    found = _FIGURE.match(text)
    if found is None:
        return None
    try:
        number = float(found[1])
    except ValueError:
        return None
    return number * _prefix(found[2])


def _prefix(unit: str) -> float:
    if unit.endswith("bit"):  # the prefixes of bit are lowercase, as in mbit
        return {"k": 1e3, "m": 1e6, "g": 1e9}.get(unit[:-3].lower(), 1.0)
    if unit[:2] in _BINARY:
        return _BINARY[unit[:2]]
    return _UNITS.get(unit[0], 1.0) if len(unit) > 1 or unit in ("k", "M", "G") else 1.0


# The path of a record's page, and functions that write the page.

RECORD, PAGE = "record.json", "report.html"
NO_FILES: Mapping[Path, bytes] = {}


def beside(record: Path) -> Path:
    """Return the path of a record's page: ``report.html`` for ``record.json``, else the name with ``.html``.

    Examples
    --------
    >>> beside(Path("runs/record.json")), beside(Path("line.json"))
    (PosixPath('runs/report.html'), PosixPath('line.html'))
    """
    if record.name == RECORD:
        return record.with_name(PAGE)
    return record.with_name(f"{record.name if record.suffix == '.html' else record.stem}.html")


def check_record(option: str, record: Path, overwrite: bool) -> None:
    """Raise ``JobError`` with the option's name unless the record and its page can be written."""
    check_writable(option, record, overwrite)
    page = beside(record)
    if record != STANDARD_OUTPUT and page.exists() and not overwrite:
        raise JobError(
            f"{option} {record} would also write the page {page}, which exists already; pass another file to "
            f"{option}, or add --overwrite"
        )


def check_results(record: Path | None, option: str, other: Path | None, overwrite: bool) -> None:
    """Check the files of ``--json`` and of ``option``, if given. Raises ``JobError``.

    Raises ``SpecError`` if ``other``, the file of ``option``, is also the record or its page.
    """
    if record is not None:
        check_record("--json", record, overwrite)
    if other is not None:
        check_writable(option, other, overwrite)
    if record is not None and other is not None:
        for name, path in (("--json", record), ("the page of --json", beside(record))):
            if path.resolve() == other.resolve():
                raise SpecError(
                    f"expected two files for {name} and {option}, got {other} twice; change one path"
                )


def keep(
    path: Path,
    record: Mapping[str, object],
    page_of: Callable[[Mapping[str, Any]], str],
    others: Mapping[Path, bytes] = NO_FILES,
    *,
    quiet: bool = False,
) -> bool:
    """Write a record and other files, all or none, then the page; return whether the page was written.

    A record on standard output has no page. Raises ``JobError`` if a file except the page can't be written.
    """
    text = to_json(record)
    write_files({path: text.encode(), **others})
    if path == STANDARD_OUTPUT:
        return False
    return write_page(beside(path), lambda: page_of(json.loads(text)), quiet=quiet)


def write_page(page: Path, make: Callable[[], str], *, quiet: bool = False) -> bool:
    """Make and write a page; print a failure, which ends no run. Return whether the page was written."""
    try:
        write_files({page: make().encode()})
    except Exception as error:
        with suppress(OSError):
            page.unlink()  # an older page belongs to another run
        sys.stderr.write(f"gradwire: {page} was not written: {str(error) or type(error).__name__}\n")
        return False
    if not quiet:
        sys.stdout.write(f"the page is {page}\n")
    return True


# The functions that make pages, by the kind of record.

MODULES = MappingProxyType(
    {
        "gradwire.choice": "gradwire.planner.report",
        "gradwire.doctor": "gradwire.doctor.report",
        "gradwire.ledger": "gradwire.sync.ledger.summary",
        "gradwire.line-rate": "gradwire.line_rate.page",
        "gradwire.profile": "gradwire.profile.run",
        "gradwire.run": "gradwire.run.run",
    }
)
"""This package's kinds of records, each with the module of its ``PAGES``, which may import torch."""


def kinds() -> tuple[str, ...]:
    """Return the kinds of records that have pages, including the kinds that other packages register."""
    return tuple(dict.fromkeys((*MODULES, *plugins.names(plugins.PAGES))))


def pages_of(kind: str) -> Mapping[str, Callable[[Mapping[str, Any]], str]] | None:
    """Return a kind's page functions by schema, or None for an unknown kind. Raises ``SpecError``."""
    module = plugins.resolve(MODULES[kind]) if kind in MODULES else plugins.entry(plugins.PAGES, kind)
    pages: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = getattr(module, "PAGES", None)
    return pages
