"""Every page of the documentation is found by who follows links, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def linked_from(page: Path) -> set[Path]:
    """Return what a page links to in this repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in target]
    return {(page.parent / target).resolve() for target in targets}


def test_no_page_is_an_orphan_and_no_link_is_dead() -> None:
    found: set[Path] = set()
    queue = [ROOT / "README.md", DOCS / "README.md"]
    while queue:
        page = queue.pop()
        if page in found:
            continue
        found.add(page)
        for target in linked_from(page):
            assert target.exists(), f"{page.relative_to(ROOT)} links to {target}, which does not exist"
            if target.suffix == ".md":
                queue.append(target)
    pages = {page.resolve() for page in DOCS.rglob("*.md")}
    assert len(pages) > 20
    assert sorted(str(page.relative_to(ROOT)) for page in pages - found) == []


def test_the_index_names_every_page_itself() -> None:
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {(DOCS / "README.md").resolve()}
    missing = pages - linked_from(DOCS / "README.md")
    assert sorted(str(page.relative_to(ROOT)) for page in missing) == [], "add them to docs/README.md"
