"""Tables as text of at most 80 columns, drawn by the package rich on a terminal."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 80
_LEAST_TEXT = 8  # the minimum width to which a column of text is narrowed, in characters
_FEW_COLUMNS = 4
"""The most columns that two spaces separate even if text is wrapped; one space separates more columns."""
_AFTER = re.compile(r"(\s+|(?<=[,:+]))")
"""The positions at which a line may be wrapped: spaces, and within specs after a comma, colon, or plus."""


@dataclass(frozen=True)
class Column:
    """A column of a table. Text is left-aligned, and wrapped if necessary; numbers are right-aligned."""

    name: str
    unit: str = ""
    is_text: bool = False

    @classmethod
    def of_text(cls, name: str) -> Column:
        """Return a column of text."""
        return cls(name, is_text=True)


@dataclass(frozen=True)
class Table:
    """A table: its columns, and its rows, each with one cell per column.

    Columns without entries and tables without rows aren't shown. With ``has_total``, the last row is a sum.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    has_total: bool = False

    def without_empty(self) -> Table:
        """Return the table without its empty columns."""
        kept = [place for place in range(len(self.columns)) if any(row[place] for row in self.rows)]
        rows = [[row[place] for place in kept] for row in self.rows]
        return Table([self.columns[place] for place in kept], rows, self.has_total)


def show(*parts: str | Table) -> None:
    """Write tables and paragraphs to standard output. An empty string becomes an empty line."""
    terminal = _terminal()
    width = WIDTH if terminal is None else min(WIDTH, terminal.width)
    for part in parts:
        if terminal is None or isinstance(part, str):
            sys.stdout.write("".join(f"{line}\n" for line in lines(part, width=width)))
        elif part.rows:
            terminal.print(_drawn(part.without_empty()))


def lines(*parts: str | Table, width: int = WIDTH) -> list[str]:
    """Convert tables and paragraphs to lines of plain text of at most ``width`` characters."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, Table):
            found += _table_lines(part.without_empty(), width)
        else:
            found += textwrap.wrap(part, width, break_long_words=False, break_on_hyphens=False) or [""]
    return found


def figure(value: float) -> str:
    """Format a number with about three digits; up to 99999, it has at most five characters.

    Examples
    --------
    >>> figure(1234.5), figure(12.345), figure(0.0123)
    ('1234', '12.3', '0.012')
    """
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}" if value >= 0.1 else f"{value:.3f}"


def _table_lines(table: Table, width: int) -> list[str]:
    if not (table.rows and table.columns):
        return []
    heads = [_head(table.columns), *table.rows]
    natural = [
        max(len(line) for cell in cells for line in cell.split("\n")) for cells in zip(*heads, strict=True)
    ]
    gap = 2 if len(natural) <= _FEW_COLUMNS or sum(natural) + 2 * (len(natural) - 1) <= width else 1
    widths = _fitted(table.columns, natural, width - gap * (len(natural) - 1))
    rule = "-" * (sum(widths) + gap * (len(widths) - 1))
    head, *body = (list(_row_lines(table.columns, row, widths, gap)) for row in heads)
    if table.has_total:
        body.insert(-1, [rule])
    under = [rule] if any(each.strip() for each in head) else []
    return [*(head if under else []), *under, *(line for row in body for line in row)]


def _head(columns: Sequence[Column]) -> list[str]:
    """Return the columns' names, with a second line for units if any column has a unit."""
    if not any(column.unit for column in columns):
        return [column.name for column in columns]
    return [f"{column.name}\n{column.unit}" for column in columns]


def _fitted(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    """Return the columns' widths after narrowing the widest texts until all columns fit into ``room``."""
    widths = list(natural)
    texts = [place for place, column in enumerate(columns) if column.is_text]
    while sum(widths) > room:
        widest = max(texts, key=lambda place: widths[place], default=None)
        if widest is None or widths[widest] <= _LEAST_TEXT:
            break
        widths[widest] -= 1
    return widths


def _row_lines(
    columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], gap: int
) -> Iterator[str]:
    last = len(columns) - 1
    cells = [
        _fold(cell, width, place == last) for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    for number in range(max(map(len, cells))):
        parts = (cell[number] if number < len(cell) else "" for cell in cells)
        padded = (
            part.ljust(width) if column.is_text else part.rjust(width)
            for column, part, width in zip(columns, parts, widths, strict=True)
        )
        yield (" " * gap).join(padded).rstrip()


def _fold(cell: str, width: int, is_last: bool) -> list[str]:
    """Wrap a cell's text at spaces and, except in the last column, also within specs; return the lines."""
    if is_last:
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    else:
        wrapper = textwrap.TextWrapper(width)
        wrapper.wordsep_re = _AFTER
    return [line for part in cell.split("\n") for line in wrapper.wrap(part) or [""]]


def _terminal() -> Any:
    """Return a console of rich if standard output is a terminal and rich is installed, else None."""
    if importlib.util.find_spec("rich") is None:
        return None
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else None


def _drawn(table: Table) -> Any:
    from rich import box
    from rich import table as rich_table
    from rich.text import Text

    head = _head(table.columns)
    drawn = rich_table.Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False, show_header=any(head)
    )
    for name, column in zip(head, table.columns, strict=True):
        drawn.add_column(
            Text(name),
            justify="left" if column.is_text else "right",
            no_wrap=not column.is_text,
            overflow="fold",
        )
    for number, row in enumerate(table.rows, start=1):
        before_total = table.has_total and number == len(table.rows) - 1
        drawn.add_row(*map(Text, row), end_section=before_total)
    return drawn
