"""Log lines for users, written by the logger ``gradwire``.

If the application configures no logging, the lines go to standard error. The destination is chosen anew for
each line, because an application may configure logging after attaching gradwire, and no line may appear
twice. Rank 0 writes all lines that are the same on all ranks.
"""

from __future__ import annotations

import logging
import os
import sys

from gradwire.errors import LOSSY_LOGGER, SpecError

LOG = logging.getLogger("gradwire")
"""The logger of all lines. Its child ``gradwire.lossy`` logs the lines that are also Python warnings."""
VARIABLE = "GRADWIRE_LOG"
"""The environment variable with the lowest level to show. It overrides the application's levels."""
LEVELS = {"quiet": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_USUAL = logging.INFO - 1  # shows INFO, and differs from every level that an application sets


def level() -> int | None:
    """Return the level in ``GRADWIRE_LOG``; None if unset or empty. Raises ``SpecError`` for another text."""
    if not (text := os.environ.get(VARIABLE)):
        return None
    if text not in LEVELS:
        raise SpecError(
            f"expected one of {', '.join(LEVELS)} for {VARIABLE}, got {text!r}; set one of these, or unset it"
        )
    return LEVELS[text]


def open_log() -> None:
    """Show lines from now on, at the level of ``GRADWIRE_LOG`` or the application. Raises ``SpecError``."""
    if (chosen := level()) is not None:
        LOG.setLevel(chosen)
    elif LOG.level == logging.NOTSET:
        LOG.setLevel(_USUAL)


def is_configured() -> bool:
    """Return whether the application has a handler for log lines, on this logger or on the root logger."""
    own = (each for each in LOG.handlers if each is not _FALLBACK)
    return any(not isinstance(each, logging.NullHandler) for each in (*own, *logging.getLogger().handlers))


class _Fallback(logging.Handler):
    """The handler that writes to the current ``sys.stderr`` while the application has no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless another handler writes it, or Python also issues it as a warning."""
        if record.name != LOG.name or is_configured():
            return
        try:
            sys.stderr.write(f"gradwire: {self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # like logging's own handlers
            self.handleError(record)


def _is_shown(record: logging.LogRecord) -> bool:
    """Return whether the application, if it configures logging, shows lines of this level."""
    return LOG.level != _USUAL or not is_configured() or record.levelno >= logging.getLogger().level


_FALLBACK = _Fallback()
LOG.addHandler(_FALLBACK)  # before ``open_log``, this handler writes only warnings, as Python does
for _each in (LOG, logging.getLogger(LOSSY_LOGGER)):  # a logger's filter doesn't see its children's lines
    _each.addFilter(_is_shown)
