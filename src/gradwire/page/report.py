"""The page of one record: the verdict, then sections of tables, paragraphs, and pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.page import made_with
from gradwire.page.document import document
from gradwire.page.markup import Markup, element, together
from gradwire.page.picture import Picture, figure
from gradwire.page.tables import shown
from gradwire.tables import Table

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
        made_with.made_with([(str(record.get("schema")), record)]),
    ]
    if options:
        body.append(element("p", made_with.options_in_words(options), class_="note"))
    return document(report.title, [*links, (made_with.ID, made_with.TITLE)], body)


def _section(name: str, heading: str, parts: Sequence[Part]) -> Markup:
    made = together(element("h2", heading, id=name), *map(_part, parts), between="\n")
    return element("section", made, aria_labelledby=name)


def _part(part: Part) -> Markup:
    if isinstance(part, Picture):
        return figure(part)
    return element("p", part) if isinstance(part, str) else shown(*part)


def _id(heading: str) -> str:
    return re.sub(r"\W+", "-", heading.lower()).strip("-")
