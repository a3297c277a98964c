"""Tables that can be sorted and, on a narrow screen, scrolled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.experiments.page.markup import Markup, element, together

SIGNS = {
    "reproduced": "\u2713",
    "modelled": "\u223f",
    "explained": "\u2248",
    "not reproduced": "\u2717",
    "not run": "\u2013",
}
"""In front of a verdict, so that neither colour nor word alone tells it."""


@dataclass(frozen=True)
class Number:
    """A cell that is sorted by a number; None is sorted behind all."""

    text: str
    key: float | None


Cell = str | Number


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], total: Sequence[Cell] = ()
) -> Markup:
    """Return a table in a box that scrolls; a row's first cell names it, and ``total`` stays at the end."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    parts = [element("caption", caption), element("thead", head), element("tbody", *map(_row, rows))]
    if total:
        parts.append(element("tfoot", _row(total)))
    return scrolled(caption, element("table", together(*parts, between="\n"), class_="sortable"))


def scrolled(label: str, content: Markup) -> Markup:
    """Return a box around wide content, which the keyboard can reach and scroll, too."""
    return element("div", content, class_="wide", role="region", tabindex="0", aria_label=label)


def verdict(name: str) -> Markup:
    """Return a verdict with its sign and colour."""
    sign = element("span", SIGNS[name], aria_hidden="true")
    colour = f"color: var(--{name.replace(' ', '-')})"
    return element("span", sign, f" {name}", class_="verdict", style=colour)


def _row(cells: Sequence[Cell]) -> Markup:
    first, *others = cells
    text = first.text if isinstance(first, Number) else first
    return together(element("tr", element("th", text, scope="row"), *map(_cell, others)), Markup("\n"))


def _cell(cell: Cell) -> Markup:
    if not isinstance(cell, Number):
        return element("td", cell)
    key = "" if cell.key is None or not math.isfinite(cell.key) else repr(float(cell.key))
    return Markup(f'<td class="number" data-sort="{key}">{together(cell.text)}</td>')
