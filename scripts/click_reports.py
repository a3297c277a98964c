"""Click through reports in a real browser as a user does: themes, sections, headings, links, and keys.

    .venv/bin/python scripts/click_reports.py runs/demo/report.html

Faults are a heading that doesn't sort its column in both directions, a lost row or table sum, a theme that
doesn't change, a section that doesn't open or close, a dead link, a table that no key reaches, and an
error on the console. browse.py documents the exit codes and the required packages.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from browse import MISSING, NEEDS, OPEN, WRONG, browser_path, pages_of, served

READ = """table => ({
  caption: table.caption.textContent,
  heads: [...table.tHead.rows[0].cells].map(cell => cell.getAttribute("aria-sort")),
  foot: table.tFoot ? table.tFoot.textContent : "",
  rows: [...table.tBodies[0].rows].map(
    row => [...row.cells].map(cell => [cell.dataset.sort ?? null, cell.textContent])),
})"""
"""JavaScript that reads the displayed table independently of the page's script."""
FOLDED = "main details"
CONTROLS = "button, a, summary, .wide"
PAPER = "getComputedStyle(document.body).backgroundColor"


def complaints(tab: Any) -> Iterator[str]:
    """Yield the faults of the open report."""
    yield from _themes(tab)
    yield from _folding(tab)
    tab.evaluate(OPEN)
    tables = tab.query_selector_all("table.sortable")
    if not tables:
        yield "expected a table, got none"
    for table in tables:
        yield from _sorting(table)
    yield from _links(tab)
    yield from _keys(tab)


def _themes(tab: Any) -> Iterator[str]:
    if not tab.is_visible("#theme"):
        yield "the theme switch is not visible"
        return
    seen = [tab.evaluate(PAPER)]
    for _ in range(2):
        tab.click("#theme")
        seen.append(tab.evaluate(PAPER))
    if seen[0] == seen[1] or seen[0] != seen[2]:
        yield f"expected two alternating themes, got {', '.join(seen)}"


def _folding(tab: Any) -> Iterator[str]:
    """Open all sections, close them, and open them again."""
    if not tab.is_visible("#all"):
        yield "the button that opens all sections is not visible"
        return
    for name, closed in (("opened", 0), ("closed", len(tab.query_selector_all(FOLDED))), ("opened again", 0)):
        tab.click("#all")
        left = len(tab.query_selector_all(f"{FOLDED}:not([open])"))
        if left != closed:
            yield f"expected {closed} folded sections after all were {name}, got {left}"


def _links(tab: Any) -> Iterator[str]:
    """Follow each link to a part of the page, and check that the part opens."""
    for link in tab.query_selector_all("main a[href^='#']"):
        target = link.get_attribute("href")
        if tab.query_selector(target) is None:
            yield f"its link {target} has no target"
            continue
        tab.evaluate(f"document.querySelector({target!r}).closest('details').open = false")
        link.evaluate("each => each.click()")
        if not tab.evaluate(f"document.querySelector({target!r}).closest('details').open"):
            yield f"its link {target} doesn't open its target"


def _sorting(table: Any) -> Iterator[str]:
    before = table.evaluate(READ)
    for column, head in enumerate(table.query_selector_all("thead th")):
        for way in ("ascending", "descending"):
            head.query_selector("button").click()
            after = table.evaluate(READ)
            name = f"the table {before['caption']!r}, column {column}, {way}"
            if sorted(map(str, after["rows"])) != sorted(map(str, before["rows"])):
                yield f"{name}: rows are lost"
            if after["foot"] != before["foot"]:
                yield f"{name}: the sum changed"
            marks = [way if place == column else None for place in range(len(after["heads"]))]
            if after["heads"] != marks:
                yield f"{name}: expected one sorted column, got {after['heads']}"
            keys = [row[column] for row in after["rows"]]
            if not in_order(keys, way == "descending"):
                yield f"{name}: the order is {[text for _, text in keys]}"


def in_order(keys: list[tuple[str | None, str]], descending: bool) -> bool:
    """Return whether figures are sorted, with empty cells last; texts may have any collation."""
    figures = [key for key, _ in keys if key is not None]
    if len(figures) < len(keys):
        texts = [text.casefold() for _, text in keys]
        plain = all(text.isalpha() and text.isascii() for text in texts)
        return not plain or texts == sorted(texts, reverse=descending)
    known = [float(key) for key in figures if key != ""]
    return known == sorted(known, reverse=descending) and all(key == "" for key in figures[len(known) :])


def _keys(tab: Any) -> Iterator[str]:
    """Reach every heading and every scrollable box with the Tab key, and sort with the Enter key."""
    tab.goto(tab.url.partition("#")[0])
    tab.evaluate(OPEN)
    wanted = tab.evaluate(f"document.querySelectorAll({CONTROLS!r}).length")
    tab.evaluate("document.body.focus()")
    reached = 0
    for _ in range(wanted):
        tab.keyboard.press("Tab")
        reached += tab.evaluate(f"document.activeElement.matches({CONTROLS!r})")
    if reached != wanted:
        yield f"the keyboard reaches {reached} of {wanted} controls"
    head = tab.query_selector("table.sortable thead th")
    if head is not None:
        head.query_selector("button").focus()
        tab.keyboard.press("Enter")
        if head.get_attribute("aria-sort") != "ascending":
            yield "the Enter key doesn't sort"


def click(paths: list[Path]) -> int:
    """Click through every page, print its faults, and return the exit code."""
    from playwright.sync_api import sync_playwright

    pages = pages_of(paths)
    folder = Path(os.path.commonpath([page.parent for page in pages]))
    found = 0
    with sync_playwright() as playwright, served(folder) as address:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        for page in pages:
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            errors = list[str]()
            tab.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            tab.goto(address + page.relative_to(folder).as_posix())
            for text in [*complaints(tab), *errors]:
                found += 1
                sys.stdout.write(f"{page.relative_to(folder)}: {text}\n")
            tab.close()
        browser.close()
    sys.stdout.write(f"{len(pages)} reports, clicked through: {found} complaints\n")
    return WRONG if found else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser("click_reports.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path, help="reports, and folders of them")
    words = parser.parse_args(arguments)
    for page in words.pages:
        if not page.exists():
            parser.error(
                f"{page} doesn't exist; create one first, for example with 'gradwire doctor --json FILE'"
            )
    try:
        import playwright
    except ImportError as error:
        sys.stderr.write(NEEDS.format(missing=f"the Python package {error.name}"))
        return MISSING
    del playwright
    if browser_path() is None:
        sys.stderr.write(NEEDS.format(missing="Chromium"))
        return MISSING
    return click(words.pages)


if __name__ == "__main__":
    sys.exit(main())
