"""The page of a record: one HTML file beside it, which loads nothing from anywhere.

The same record gives the same bytes: no time, no path, and no random name is in the page.
"""

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
    "render",
    "write_page",
]
