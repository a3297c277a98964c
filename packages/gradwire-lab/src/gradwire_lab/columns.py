"""Tables in which each column has a function for the text of its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gradwire.tables import Column, Table, figure

Item = TypeVar("Item")
Columns = Sequence[tuple[Column, Callable[[Item], str]]]
"""The columns of a table, each with the function that returns an item's text."""


def table_of(columns: Columns[Item], items: Iterable[Item]) -> Table:
    """Return a table with a row for each item."""
    rows = [tuple(text(each) for _, text in columns) for each in items]
    return Table([column for column, _ in columns], rows)


def text_of(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats the value called ``name`` of a row with ``str``."""
    return lambda row: str(row[name])


def ms_of(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats a row's seconds called ``name`` as milliseconds."""
    return lambda row: figure(1e3 * row[name])


def error_of(row: Mapping[str, Any]) -> float:
    """Return the error of a row's predicted seconds as a share of the measured seconds."""
    return float(row["predicted_s"] / row["measured_s"] - 1)
