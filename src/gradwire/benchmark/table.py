"""Tables of at most 100 columns: by rich where it is installed, else plain."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Sequence

WIDTH = 100
NAMES = ("algorithm", "codec", "ranks of a pair")
"""Columns of words; all others are figures."""


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    """Write a table to standard output: names at the left, figures at the right; the note below it."""
    sys.stdout.write(f"{title}\n\n")
    if importlib.util.find_spec("rich") is None:
        sys.stdout.write("\n".join(plain_lines(columns, rows)) + "\n")
    else:
        _print_rich(columns, rows)
    sys.stdout.write("\n" + textwrap.fill(note, WIDTH) + "\n")


def plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a plain table."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    head, *body = [
        " ".join(
            cell.ljust(width) if name in NAMES else cell.rjust(width)
            for cell, width, name in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in (columns, *rows)
    ]
    return [head, "-" * (sum(widths) + len(widths) - 1), *body]


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    for column in columns:
        if column in NAMES:
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal and console.width < WIDTH else Console(width=WIDTH)).print(table)


def size_text(nbytes: int) -> str:
    """Return a size without rounding, as ``parse_size`` reads it: ``64KiB``, ``16MB``, ``1000004B``."""
    return min(_exact(nbytes, 1024, "iB"), _exact(nbytes, 1000, "B"), key=len)


def _exact(nbytes: int, base: int, ending: str) -> str:
    power = 0
    while power < 3 and nbytes % base == 0:
        nbytes, power = nbytes // base, power + 1
    prefixes = "KMG" if base == 1024 else "kMG"
    return f"{nbytes}{prefixes[power - 1]}{ending}" if power else f"{nbytes}B"
