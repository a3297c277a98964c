"""Progress of a benchmark: a bar on a terminal, a line for every figure elsewhere, nothing when quiet."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, str], None]
"""Called with the figures that are done in all, and what was measured last."""


@contextmanager
def progress(total: int, quiet: bool) -> Iterator[Advance]:
    """Give the function that shows how many of ``total`` figures are done."""
    if quiet:
        yield lambda _done, _text: None
    elif importlib.util.find_spec("rich") is not None and sys.stdout.isatty():
        with _bar(total) as advance:
            yield advance
    else:
        yield lambda done, text: print_line(f"{done}/{total} {text}")


def print_line(text: str) -> None:
    """Write a line at once, as a log wants it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def _bar(total: int) -> Iterator[Advance]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), transient=True) as bar:
        task = bar.add_task("", total=total)

        def advance(done: int, text: str) -> None:
            bar.update(task, completed=done, description=text)

        yield advance
