"""The progress of a benchmark: a bar on a terminal, else one line per measurement, or nothing if quiet."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, str], None]
"""A function that shows progress, given the number of completed measurements and a text on the last one."""


@contextmanager
def progress(total: int, quiet: bool, done: int = 0) -> Iterator[Advance]:
    """Yield a function that shows progress and remaining time; ``done`` measurements are already complete."""
    if quiet:
        yield lambda _done, _text: None
    elif importlib.util.find_spec("rich") is not None and sys.stdout.isatty():
        with _bar(total, done) as advance:
            yield advance
    else:
        began = time.monotonic()

        def advance_line(now: int, text: str) -> None:
            rest_s = (total - now) * (time.monotonic() - began) / max(now - done, 1)
            print_line(f"{now}/{total} {text}" + (f", {about(rest_s)} left" if done < now < total else ""))

        yield advance_line


def about(seconds: float) -> str:
    """Return an approximate duration as text."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def print_line(text: str) -> None:
    """Write a line to standard output and flush it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def _bar(total: int, done: int) -> Iterator[Advance]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, TextColumn("{task.description}", markup=False), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def advance(done: int, text: str) -> None:
            bar.update(task, completed=done, description=text)

        yield advance
