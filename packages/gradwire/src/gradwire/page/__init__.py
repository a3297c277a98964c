"""The page of a record: one self-contained HTML file next to the record.

Equal records have pages of equal bytes, because a page contains no time, path, or random name.
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
    in_notebook,
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
    "in_notebook",
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
        "gradwire.run": "gradwire.run.report",
    }
)
"""The kinds of this package's records, each with the module whose ``PAGES`` contains the page functions.

The modules are imported on use, because most of them import torch, which takes seconds. Other packages
register such modules as entry points (``plugins.PAGES``).
"""


def kinds() -> tuple[str, ...]:
    """Return the kinds of records that have pages, including the kinds that other packages register."""
    return tuple(dict.fromkeys((*MODULES, *plugins.names(plugins.PAGES))))


def pages_of(kind: str) -> Mapping[str, Callable[[Mapping[str, Any]], str]] | None:
    """Return the page functions for one kind of records, keyed by schema, or None for an unknown kind.

    Raises ``SpecError`` if another package's module cannot be loaded.
    """
    module = plugins.resolve(MODULES[kind]) if kind in MODULES else plugins.entry(plugins.PAGES, kind)
    pages: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = getattr(module, "PAGES", None)
    return pages
