"""The answer to an experiment's question on its page: a sentence and bars, from one column of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.page import Part, Picture, magnitude
from gradwire.page.picture import CURVES, bar_height, name_bars, without_frame
from gradwire.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 24
"""The largest number of bars; the tables have all rows."""


LONGEST_TITLE = 160
"""The largest number of characters of a paragraph that becomes the caption of the table below it."""
_FIGURE = re.compile(r"[-+]?\d")


@dataclass(frozen=True)
class Answer:
    """The column that answers an experiment's question, and the columns that name its rows."""

    column: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """One row's figure: the row's name, the cell's text, and the number in base units."""

    name: str
    text: str
    value: float


@dataclass(frozen=True)
class Findings:
    """The figures of all rows, and their column."""

    column: Column
    rows: tuple[Finding, ...]

    @classmethod
    def of(cls, parts: Sequence[str | Table], answer: Answer) -> Findings | None:
        """Return the figures of the tables with the answer's columns, or None without such a table."""
        titled = [each for each in _titled(parts) if {answer.column, *answer.names} <= {*_names(each[1])}]
        rows = [
            found
            for title, table in titled
            for found in _rows(table, answer, title if len(titled) > 1 else "")
        ]
        if not rows:
            return None
        first = titled[0][1]
        return cls(first.columns[_names(first).index(answer.column)], tuple(rows))

    @property
    def unit(self) -> str:
        """The unit of the figures, from the column or, as in ``2.5x``, from their text."""
        return self.column.unit or ("x" if self.rows[0].text.endswith("x") else "")

    def in_words(self) -> str:
        """Return the smallest and the largest figure and their rows as a sentence."""
        first, last = (pick(self.rows, key=lambda each: each.value) for pick in (min, max))
        name = f"{self.column.name[0].upper()}{self.column.name[1:]}"
        if len(self.rows) == 1:
            return f"{name}: {self._shown(first)} ({first.name})."
        return f"{name}: from {self._shown(first)} ({first.name}) to {self._shown(last)} ({last.name})."

    def _shown(self, row: Finding) -> str:
        return f"{row.text} {self.column.unit}".rstrip()

    def bars(self) -> Picture:
        """Return the picture with a bar for each row."""
        shown = self.rows[:SHOWN]

        def paint(figure: Figure) -> None:
            axes = figure.subplots()
            values = [each.value for each in shown]
            axes.barh(range(len(shown)), values, height=bar_height(axes), color=CURVES[0])
            name_bars(axes, [each.name for each in shown], font_size=8)
            axes.set_xlabel(f"{self.column.name}{f' [{self.unit}]' if self.unit else ''}")
            without_frame(axes)

        more = len(self.rows) - len(shown)
        rest = f" The tables have {more} more rows." if more else ""
        height_in = 0.8 + 0.3 * len(shown)
        return Picture(
            "answer", f"{self.column.name}, by row of the tables.{rest}", paint, height_in, 1.3 * height_in
        )


def _titled(parts: Sequence[str | Table]) -> Iterator[tuple[str, Table]]:
    title = ""
    for part in parts:
        if isinstance(part, Table):
            yield title, part
        else:
            title = part or title


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _rows(table: Table, answer: Answer, title: str) -> Iterator[Finding]:
    names = _names(table)
    value_at, places = names.index(answer.column), [names.index(name) for name in answer.names]
    short = title.partition(":")[0].partition(",")[0]
    for row in table.rows:
        value = magnitude(row[value_at]) if _FIGURE.match(row[value_at]) else None
        if value is None:
            continue  # the row has no figure in this column
        named = [
            row[place] if table.columns[place].is_text or not row[place] else f"{names[place]} {row[place]}"
            for place in places
        ]
        yield Finding(", ".join(filter(None, (*named, short))), row[value_at], value)


def captioned(parts: Sequence[str | Table], question: str) -> list[Part]:
    """Return the parts with a caption for each table: the title before the table, or the question."""
    told, seen = list[Part](), Counter[str]()
    for part in parts:
        if isinstance(part, str):
            told += [part] if part else []
            continue
        last = told[-1] if told else ""
        is_title = isinstance(last, str) and 0 < len(last) <= LONGEST_TITLE
        caption = str(told.pop()).rstrip(":") if is_title else question
        seen[caption] += 1
        told.append((f"{caption} ({seen[caption]})" if seen[caption] > 1 else caption, part))
    return told
