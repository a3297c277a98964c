"""What a run leaves for people: one HTML file beside its record, which loads nothing from anywhere.

The same record gives the same bytes: no time, no path, and no random name is in the page.
"""

from gradwire.page.report import (
    PAGE,
    RECORD,
    Part,
    Report,
    Section,
    beside,
    check_page,
    keep,
    report_page,
    write_page,
)
from gradwire.page.tables import Picture

__all__ = [
    "PAGE",
    "RECORD",
    "Part",
    "Picture",
    "Report",
    "Section",
    "beside",
    "check_page",
    "keep",
    "report_page",
    "write_page",
]
