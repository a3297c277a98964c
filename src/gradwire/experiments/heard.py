"""Lossy warnings that come while a cell is measured: its row keeps them, and reports show them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType

from gradwire.errors import LOSSY_LOGGER
from gradwire.experiments.experiment import Row

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
