"""Tables whose columns say what stands in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gradwire.tables import Column, Table, figure

Item = TypeVar("Item")
Columns = Sequence[tuple[Column, Callable[[Item], str]]]
"""Columns of a table, each with the function that returns its text for an item."""


def table_of(columns: Columns[Item], items: Iterable[Item]) -> Table:
    """Return the table with a row for each item."""
    rows = [tuple(text(each) for _, text in columns) for each in items]
    return Table([column for column, _ in columns], rows)


def text_of(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the function that returns a value of a row as it is."""
    return lambda row: str(row[name])


def ms_of(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the function that returns seconds of a row as milliseconds."""
    return lambda row: figure(1e3 * row[name])
