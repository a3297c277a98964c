"""Generated content in place of a comment ``<!-- site: KIND WORDS -->`` on its own line."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from accessible import mend
from choices import thresholds, transitions
from commands import command_line
from menu import menu
from mistakes import table
from names import keep, plain, python_names
from reproduced import link, make

COMMENT = re.compile(r"^<!-- site: (\w+)((?: \S+)*) -->$", re.MULTILINE)
OUTSIDE = re.compile(r"\]\((?:\.\./)+(?!\.\./)(?=(?:examples|tests)/)")
WRITERS = MappingProxyType(
    {
        "menu": menu,
        "python": python_names,
        "commands": command_line,
        "transitions": transitions,
        "thresholds": thresholds,
        "errors": table,
        "reproduced": link,
    }
)
"""The function that returns the Markdown of each kind; it receives the comment's words."""


def fill(_app: Any, _page: str, source: list[str]) -> None:
    """Replace a page's comments with generated content, and make links out of the site lead to files."""

    def written(found: re.Match[str]) -> str:
        writer: Callable[..., str] = WRITERS[found[1]]
        return writer(*found[2].split())

    text = source[0].replace("](README.md)", "](index.md)")
    text = OUTSIDE.sub(lambda found: f"](path:{found[0][2:]}", text)
    source[0] = COMMENT.sub(written, text)


def setup(app: Any) -> dict[str, bool]:
    """Register the extension's hooks; return its metadata for Sphinx."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", keep, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", plain, priority=900)  # after it
    app.connect("build-finished", mend)
    app.connect("build-finished", make, priority=900)  # after mend, which is for the theme's pages
    return {"parallel_read_safe": True, "parallel_write_safe": True}
