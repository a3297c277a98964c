"""Experiments: a question, its options, the cells that answer it, and a table."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType, TracebackType
from typing import Any, Generic, TypeVar

from gradwire.errors import LOSSY_LOGGER
from gradwire.tables import Table
from gradwire_lab.experiments.options import add_options, read_options

Options = TypeVar("Options")

Cell = Mapping[str, Any]
"""One thing to measure, by names with JSON values: ``{"hosts": 4, "rate": "1gbit", "algorithm": "ring"}``."""
Row = Mapping[str, Any]
"""A cell's names and values, and the figures that were measured."""
Report = Callable[[Row], None]
"""Takes each row as soon as it is measured."""


@dataclass(frozen=True)
class Reporter:
    """A ``Report`` that also shows what is being measured, where a row takes minutes."""

    take: Report
    say: Callable[[str], None]

    def __call__(self, row: Row) -> None:
        """Take a row."""
        self.take(row)


@dataclass(frozen=True)
class Experiment(Generic[Options]):
    """An experiment. The module that defines it imports torch only while it measures or shows.

    Parameters
    ----------
    name
        As on the command line.
    question
        What the experiment answers, in one line.
    options
        The options, a frozen dataclass whose fields describe their words on the command line.
    cells
        Returns what to measure for the options, in the order of the table. Each cell is there once.
    run
        Measures the cells that it gets and reports a row for each of them; ``report.say`` shows meanwhile how
        far it is. It also gets the rows that an interrupted run has measured before.
    table
        Returns tables and paragraphs for all rows.
    plot
        Returns a picture of all rows as a PNG; None if there is nothing to draw.
    version
        The version of the rows' fields in the record.
    """

    name: str
    question: str
    options: Callable[..., Options]
    cells: Callable[[Options], Sequence[Cell]]
    run: Callable[[Options, Sequence[Cell], Sequence[Row], Reporter], None]
    table: Callable[[Sequence[Row]], Sequence[str | Table]]
    plot: Callable[[Sequence[Row]], bytes] | None = None
    version: int = 1

    @property
    def schema(self) -> str:
        """The schema of its record."""
        return f"gradwire.experiment-{self.name}/{self.version}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the experiment's own options to a parser."""
        add_options(parser, self.options)

    def read(self, words: argparse.Namespace) -> Options:
        """Return the options for the parsed arguments. Raises ``GradwireError``."""
        return read_options(self.options, words)


def turned(names: Sequence[str], number: int, rounds: int) -> list[str]:
    """Return names in the order of one of several turns, each of which begins with another name.

    Examples
    --------
    >>> turned(["a", "b", "c", "d"], 1, 2), turned(["a", "b", "c", "d"], 2, 2)
    (['c', 'd', 'a', 'b'], ['a', 'b', 'c', 'd'])
    """
    first = number * len(names) // rounds % len(names) if names else 0
    return [*names[first:], *names[:first]]


def is_row_of(cell: Cell, row: Row) -> bool:
    """Return whether a row is what was measured for a cell."""
    return all(name in row and row[name] == value for name, value in cell.items())


def cells_of(common: Cell = MappingProxyType({}), /, **values: Iterable[Any]) -> list[Cell]:
    """Return a cell for each combination of values; those of the last name change first.

    Every cell has the names of ``common``, too.

    Examples
    --------
    >>> cells_of({"rate": "1gbit"}, hosts=(2, 4))
    [{'rate': '1gbit', 'hosts': 2}, {'rate': '1gbit', 'hosts': 4}]
    """
    return [{**common, **dict(zip(values, each, strict=True))} for each in product(*values.values())]


def select(rows: Sequence[Row], **wanted: object) -> list[Row]:
    """Return the rows with these names and values."""
    return [row for row in rows if is_row_of(wanted, row)]


def grouped(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Return the rows by their value of a name, in the order in which values first come."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def in_order(cells: Sequence[Cell], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the cells, in the cells' order."""
    return [row for cell in cells for row in rows if is_row_of(cell, row)]


def in_words(row: Row, cells: Sequence[Cell]) -> str:
    """Return the texts and numbers of a row in one line, without what all cells have in common.

    Lists, such as curves, are for the record.
    """
    common = {name for name in row if len(cells) > 1 and all(cell.get(name) == row[name] for cell in cells)}
    return "  ".join(
        f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in row.items()
        if name not in common and isinstance(value, str | int | float) and value != ""
    )


# Lossy warnings that come while a cell is measured: its row keeps them, and reports show them.

LOSSY = "lossy"
"""The field of a row with the warnings that came while it was measured; missing without any."""
SHOWN = 3
"""Warnings of one exhibit that a report shows; the record has them all."""


class HeardWarnings(logging.Handler):
    """The lossy warnings of this process, and of the processes that it started, until they are taken.

    While it is entered, it is the only handler of the logger.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sentences: dict[str, None] = {}
        self._others: list[logging.Handler] = []

    def __enter__(self) -> HeardWarnings:
        logger = logging.getLogger(LOSSY_LOGGER)
        self._others, logger.handlers = logger.handlers, [self]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger(LOSSY_LOGGER).handlers = self._others

    def emit(self, record: logging.LogRecord) -> None:
        """Take a warning, from any thread, once."""
        self._sentences[record.getMessage()] = None

    def joined(self, row: Row) -> Row:
        """Return a row with the warnings since the last one."""
        sentences, self._sentences = self._sentences, {}
        heard = [*dict.fromkeys([*row.get(LOSSY, ()), *sentences])]
        return {**row, LOSSY: heard} if heard else row


def pass_on(sentence: str) -> None:
    """Log a lossy warning of another process."""
    logging.getLogger(LOSSY_LOGGER).warning(sentence)


def lossy_warnings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the warnings of all rows, each once."""
    return (*dict.fromkeys(sentence for row in rows for sentence in row.get(LOSSY, ())),)


def warnings_in_words(sentences: Sequence[str]) -> str:
    """Return a paragraph about warnings; nothing without any."""
    if not sentences:
        return ""
    more = len(sentences) - SHOWN
    rest = f"; and {more} more, which the record has" if more > 0 else ""
    return f"Lossy warnings while this was measured: {'; '.join(sentences[:SHOWN])}{rest}."
