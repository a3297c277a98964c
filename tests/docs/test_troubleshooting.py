"""docs/troubleshooting.md has an entry for every error, and quotes sentences of the source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import pytest

from gradwire import errors
from support.project import DOCS, ROOT

PAGE = (DOCS / errors.PAGE).read_text(encoding="utf-8")
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
SHORTEST = 12
"""The characters of a fragment below which it may be in the source by chance."""


def anchors() -> set[str]:
    """Return the anchors of the page's headings, as a Git host makes them."""
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_the_entry_that_it_names(kind: type[errors.GradwireError]) -> None:
    page, _, anchor = kind.docs.partition("#")
    assert page == errors.PAGE
    assert anchor in anchors()


def sentences() -> list[str]:
    """Return the sentences that the first columns of the tables quote."""
    cells = re.findall(r"^\| (`[^|]+`[^|]*) \|", PAGE, re.MULTILINE)
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [text for text in quoted if len(text.strip(".; ")) >= 2 * SHORTEST]


def literals() -> Iterator[str]:
    """Yield the strings of the core's source, and the parts of f-strings between values."""
    for path in (ROOT / "packages" / "gradwire" / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_quoted_sentence_is_in_the_source() -> None:
    found = sentences()
    assert len(found) >= 25
    parts = {text.strip() for text in literals() if len(text.strip()) >= SHORTEST}
    pieces = {text[place : place + SHORTEST] for text in parts for place in range(len(text) - SHORTEST + 1)}
    for sentence in found:
        own = [sentence[place : place + SHORTEST] for place in range(len(sentence) - SHORTEST + 1)]
        covered = {
            place + step for place, piece in enumerate(own) if piece in pieces for step in range(SHORTEST)
        }
        assert len(covered) >= 0.4 * len(sentence), f"the source says it in other words: {sentence!r}"
