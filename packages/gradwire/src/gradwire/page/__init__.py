"""The page of a record: one HTML file beside it, which loads nothing from anywhere.

The same record gives the same bytes: no time, no path, and no random name is in the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gradwire import plugins
from gradwire.page.picture import Picture
from gradwire.page.report import (
    PAGE,
    RECORD,
    Mark,
    Note,
    Number,
    PageLink,
    Part,
    Report,
    Section,
    beside,
    check_page,
    keep,
    render,
    write_page,
)

__all__ = [
    "PAGE",
    "RECORD",
    "Mark",
    "Note",
    "Number",
    "PageLink",
    "Part",
    "Picture",
    "Report",
    "Section",
    "beside",
    "check_page",
    "keep",
    "kinds",
    "pages_of",
    "render",
    "write_page",
]

MODULES = MappingProxyType(
    {
        "gradwire.choice": "gradwire.planner.report",
        "gradwire.doctor": "gradwire.doctor.report",
        "gradwire.ledger": "gradwire.sync.ledger.summary",
        "gradwire.line-rate": "gradwire.line_rate.page",
        "gradwire.profile": "gradwire.profile.run",
    }
)
"""Kinds of this package's records, and the modules whose ``PAGES`` show them.

Most need torch, whose import takes seconds. Other packages name theirs as entry points (``plugins.PAGES``).
"""


def kinds() -> tuple[str, ...]:
    """Return the kinds of records that have pages, those of other packages too."""
    return tuple(dict.fromkeys((*MODULES, *plugins.names(plugins.PAGES))))


def pages_of(kind: str) -> Mapping[str, Callable[[Mapping[str, Any]], str]] | None:
    """Return the functions that make the pages of a kind of records, by schema, or None for another kind.

    Raises ``SpecError`` for another package whose module cannot be loaded.
    """
    module = plugins.resolve(MODULES[kind]) if kind in MODULES else plugins.entry(plugins.PAGES, kind)
    pages: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = getattr(module, "PAGES", None)
    return pages
