"""The menu of the site: a part for every heading of docs/README.md, with the pages listed below it."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
LINK = re.compile(r"\]\(([^)#:]+)\.md\)")


def parts(text: str) -> list[tuple[str, list[str]]]:
    """Return every heading of the second level, and the pages that the text below links to, in order."""
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, below = part.partition("\n")
        found.append((heading.strip(), list(dict.fromkeys(LINK.findall(below)))))
    return found


def menu() -> str:
    """Return a hidden table of contents for every part."""
    tables = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```"])
        for heading, pages in parts(README.read_text(encoding="utf-8"))
    ]
    return "\n\n".join(tables)
