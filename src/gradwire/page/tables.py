"""Tables that can be sorted and, on a narrow screen, scrolled."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.page.markup import Markup, element, together
from gradwire.tables import Table

_FIGURE = re.compile(r"[^\d-]*(-?[\d.]+(?:e[+-]?\d+)?) ?([A-Za-zµ]*)")
_UNITS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


@dataclass(frozen=True)
class Mark:
    """A word that judges, with its sign and colour: neither of them alone tells it.

    ``tone`` is a name of a colour of ``style``: good, near, caution, bad, or none.
    """

    word: str
    sign: str
    tone: str


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


def shown(caption: str, content: Table) -> Markup:
    """Return a table for a terminal as one for a page: figures are sorted by what their texts say."""
    kept = content.without_empty()
    columns = [f"{each.name} ({each.unit})" if each.unit else each.name for each in kept.columns]
    rows: list[list[Cell]] = [
        [
            text if column.is_text else Number(text, magnitude(text))
            for column, text in zip(kept.columns, row, strict=True)
        ]
        for row in kept.rows
    ]
    total = rows.pop() if kept.has_total else ()
    return table(caption, columns, rows, total)


def magnitude(text: str) -> float | None:
    """Return the number that a text begins with, times its unit's prefix; None without one.

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
    if unit.endswith("bit"):  # whose prefixes are small letters, as in mbit
        return {"k": 1e3, "m": 1e6, "g": 1e9}.get(unit[:-3].lower(), 1.0)
    if unit[:2] in _BINARY:
        return _BINARY[unit[:2]]
    return _UNITS.get(unit[0], 1.0) if len(unit) > 1 or unit in ("k", "M", "G") else 1.0


def marked(mark: Mark) -> Markup:
    """Return the word with its sign and colour."""
    sign = element("span", mark.sign, aria_hidden="true")
    return element("span", sign, f" {mark.word}", class_="mark", style=f"color: var(--{mark.tone})")


def _row(cells: Sequence[Cell]) -> Markup:
    first, *others = cells
    text = first.text if isinstance(first, Number) else first
    named = element("th", text, scope="row", **_key(first))
    return together(element("tr", named, *map(_cell, others)), Markup("\n"))


def _cell(cell: Cell) -> Markup:
    if not isinstance(cell, Number):
        return element("td", cell)
    (key,) = _key(cell).values()
    return Markup(f'<td class="number" data-sort="{key}">{together(cell.text)}</td>')


def _key(cell: Cell) -> dict[str, str]:
    """Return the attribute by which the script sorts a number; empty if it isn't known."""
    if not isinstance(cell, Number):
        return {}
    return {"data_sort": "" if cell.key is None or not math.isfinite(cell.key) else repr(float(cell.key))}
