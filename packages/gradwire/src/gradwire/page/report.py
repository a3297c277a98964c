"""The page of one record: the verdict, then sections of tables, paragraphs, and pictures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.errors import JobError
from gradwire.files import write_files
from gradwire.page.markup import Markup, element, script, style, together
from gradwire.page.tables import Picture, can_draw, figure, shown, table
from gradwire.records import to_json
from gradwire.tables import Table
from gradwire.version import how_to_install

# The frame of every page: its head, the switch of themes, links to the sections, and the script.

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser lets the page load: nothing. Its style and script are inside."""


def document(title: str, links: Sequence[tuple[str, str]], parts: Sequence[Markup]) -> str:
    """Return an HTML file.

    Parameters
    ----------
    title
        Its only heading of the first level.
    links
        The ids of the sections, and what the links to them say.
    parts
        What stands below the links.
    """
    body = (
        element(
            "header",
            element("button", "Light or dark", id="theme", type="button", hidden=""),
            element("h1", title),
            element("nav", *_links(links), aria_label="Sections"),
        ),
        element("main", together(*parts, between="\n")),
        element("script", script()),
    )
    head = (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", style()),
    )
    whole = (element("head", together(*head, between="\n")), element("body", together(*body, between="\n")))
    return f"<!DOCTYPE html>\n{element('html', *whole, lang='en')}\n"


def _links(links: Sequence[tuple[str, str]]) -> list[Markup]:
    return [together(element("a", text, href=f"#{name}"), " ") for name, text in links]


# What records say of their origin: the machine, the versions, the commit.

MADE_WITH = ("machine", "versions", "commit", "commits")
"""Fields of a record that say where it is from."""
ID = "machine"
TITLE = "Machine and versions"


def made_with_made_with(records: Sequence[tuple[str, Mapping[str, Any]]]) -> Markup:
    """Return a table for each machine, versions, and commit, with the names of the records made there."""
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, fields in records:
        same = json.dumps([fields.get(each) for each in MADE_WITH], sort_keys=True)
        groups.setdefault(same, []).append((name, fields))
    parts = [element("h2", TITLE, id=ID)]
    for group in groups.values():
        names = ", ".join(name for name, _ in group)
        parts.append(
            table(f"Record{'s' * (len(group) > 1)} of {names}", ("what", "value"), _lines(group[0][1]))
        )
    if not can_draw():
        parts.append(
            element("p", f"For plots, install matplotlib: {how_to_install('train')}.", class_="note")
        )
    return together(*parts, between="\n")


def options_in_words(options: Mapping[str, Any]) -> str:
    """Return a record's options as a sentence."""
    said = "; ".join(f"{name} {'none' if value is None else plain(value)}" for name, value in options.items())
    return f"Options: {said or 'none'}."


def plain(value: object) -> str:
    """Return a value of JSON as people read it."""
    if value is None:
        return "unknown"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _lines(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values; what has names of its own takes a line for each."""
    lines: list[tuple[str, str]] = []
    for name in MADE_WITH:
        if name.startswith("commit") and name not in fields:
            continue  # most kinds of records don't say it
        value = fields.get(name)
        if name == "commits" and isinstance(value, Mapping):
            value = {"rows by commit": value}
        several = value if isinstance(value, Mapping) else {name: value}
        lines += [(key, plain(each)) for key, each in several.items()]
    return lines


Part = str | tuple[str, Table] | Picture
"""A paragraph; a table with its caption; a picture."""
Section = tuple[str, Sequence[Part]]
"""A heading, and what is below it."""


@dataclass(frozen=True)
class Report:
    """What a page says of a record.

    Parameters
    ----------
    title
        What was run.
    verdict
        What came of it, in a sentence that stands first.
    sections
        Headings, and what is below each; a section without parts is left out.
    """

    title: str
    verdict: str
    sections: Sequence[Section]


def report_page(report: Report, record: Mapping[str, Any]) -> str:
    """Return the HTML file: the report, the record's options, and what it was made with."""
    sections = [(_id(heading), heading, parts) for heading, parts in report.sections if parts]
    links = [(name, heading) for name, heading, _ in sections]
    options = record.get("options")
    body = [
        element("p", report.verdict, class_="answer"),
        *(_section(*each) for each in sections),
        made_with_made_with([(str(record.get("schema")), record)]),
    ]
    if options:
        body.append(element("p", options_in_words(options), class_="note"))
    return document(report.title, [*links, (ID, TITLE)], body)


def _section(name: str, heading: str, parts: Sequence[Part]) -> Markup:
    made = together(element("h2", heading, id=name), *map(_part, parts), between="\n")
    return element("section", made, aria_labelledby=name)


def _part(part: Part) -> Markup:
    if isinstance(part, Picture):
        return figure(part)
    return element("p", part) if isinstance(part, str) else shown(*part)


def _id(heading: str) -> str:
    return re.sub(r"\W+", "-", heading.lower()).strip("-")


# Where a record's page is, and how it gets there: a page that can't be written never fails the run.

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
