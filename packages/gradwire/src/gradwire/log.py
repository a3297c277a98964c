"""Log lines for users, by the logger ``gradwire``.

The lines are written to standard error if the application configures no logging. The logger and the
destination are chosen for each line, because an application may configure logging after attaching gradwire,
and no line may appear twice. Rank 0 writes all lines that are the same on all ranks.
"""

from __future__ import annotations

import logging
import os
import sys

from gradwire.errors import SpecError

LOG = logging.getLogger("gradwire")
"""The logger of all lines; ``gradwire.lossy`` below it logs the lines that are also Python warnings."""
VARIABLE = "GRADWIRE_LOG"
"""The environment variable for the lowest level to show, which overrides the application's levels."""
LEVELS = {"quiet": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_USUAL = logging.INFO - 1  # shows INFO, and differs from every level that an application sets


def level() -> int | None:
    """Return the level in ``GRADWIRE_LOG``, or None if it is unset or empty. Raises ``SpecError``."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    if text not in LEVELS:
        raise SpecError(
            f"expected one of {', '.join(LEVELS)} for {VARIABLE}, got {text!r}; correct or unset {VARIABLE}"
        )
    return LEVELS[text]


def open_log() -> None:
    """Show lines from now on, at the level of ``GRADWIRE_LOG`` or of the application.

    A level that the application set on the logger stays, unless the variable is set. Repeated calls are
    allowed. Raises ``SpecError``.
    """
    chosen = level()
    if chosen is not None:
        LOG.setLevel(chosen)
    elif LOG.level == logging.NOTSET:
        LOG.setLevel(_USUAL)


def is_configured() -> bool:
    """Return whether the application handles log lines, by the root logger or by a handler of its own."""
    own = (each for each in LOG.handlers if each is not _FALLBACK)
    return any(not isinstance(each, logging.NullHandler) for each in (*own, *logging.getLogger().handlers))


class _Fallback(logging.Handler):
    """The handler that writes to the current ``sys.stderr`` while the application has no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless another handler does, or it is also a Python warning."""
        if record.name != LOG.name or is_configured():
            return
        try:
            sys.stderr.write(f"gradwire: {self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # like logging's own handlers
            self.handleError(record)


class _Levels(logging.Filter):
    """The filter that applies the application's level, as if gradwire's logger had no level."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the application, if it configures logging, shows lines of this level."""
        if LOG.level == _USUAL and is_configured():
            return record.levelno >= logging.getLogger().level
        return True


_FALLBACK = _Fallback()
LOG.addHandler(_FALLBACK)  # before ``open_log``, it writes warnings, as Python itself does without a handler
LOG.addFilter(_Levels())
