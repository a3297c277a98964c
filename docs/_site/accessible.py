"""Fixes to the site's HTML for readers who use a keyboard or a screen reader, which the theme lacks.

The rules of axe-core (``scripts/browse.py``) find the problems; newer releases may make some fixes
unnecessary.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MENDED = (
    (r'(<p class="caption" role="heading")>', r'\1 aria-level="2">'),  # of the menu's parts
    (r'(<aside class="sidebar-drawer")>', r'\1 aria-label="All pages">'),
    (r'(<aside class="toc-drawer[^"]*")>', r'\1 aria-label="This page">'),
    (
        r'(<div class="table-wrapper[^"]*")>',
        r'\1 tabindex="0" role="group" aria-label="Table">',
    ),  # it scrolls
    (r'<thead>\s*<tr[^>]*>\s*(?:<th class="head[^"]*"><p></p></th>\s*)+</tr>\s*</thead>\n?', ""),
    (r'<th class="head([^"]*)"><p></p></th>', r'<td class="head\1"></td>'),  # above the names of rows
    (r'(?<!</h1>)(<div id="search-results">)', r"<h1>Search</h1>\1"),
    (r"<pre>", r'<pre tabindex="0">'),  # so does a block of code
    (r'<dl>(?=\s*<dd><em class="sig-param">)', r'<dl role="presentation">'),  # a list of values, not of terms
)
"""The patterns in a page's HTML and their replacements; a page that is already fixed stays unchanged."""


CELL = re.compile(r"<td>(?=<p>(.*?)</td>)", re.DOTALL)
PROSE = 30
"""The length of a cell's text, in characters, from which its column needs the width of prose on a phone."""


def mended(html: str) -> str:
    """Return a page's HTML with all fixes."""
    for found, becomes in MENDED:
        html = re.sub(found, becomes, html)
    return CELL.sub(lambda found: '<td class="prose">' if is_prose(found[1]) else found[0], html)


def is_prose(content: str) -> bool:
    """Return whether the text of a cell, given as HTML, is long."""
    return len(re.sub(r"<[^>]*>", "", content)) >= PROSE


def mend(app: Any, error: Exception | None) -> None:
    """Fix all pages of the built site."""
    for page in () if error else Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if (better := mended(text)) != text:
            page.write_text(better, encoding="utf-8")
