"""A progress bar of measurements on standard error, for commands whose result goes to standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

Show = Callable[[int, int, str], None]
"""A function of the number of finished measurements, their total number, and the next measurement's name."""


@contextmanager
def measuring(quiet: bool) -> Iterator[Show]:
    """Yield a function that draws a progress bar on a terminal, or does nothing if ``quiet``."""
    if quiet or not sys.stderr.isatty():
        yield lambda _done, _total, _what: None
        return

    def draw(done: int, total: int, what: str) -> None:
        bar = "#" * (24 * done // max(1, total))
        text = f"measuring codecs [{bar:<24}] {done}/{total} {what}"
        sys.stderr.write(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}")  # a wrapped line would stay
        sys.stderr.flush()

    try:
        yield draw
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
