"""The page of the papers' records that docs/reproduced keeps, which is part of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradwire_lab.experiments.page import page, read_all
from gradwire_lab.experiments.papers import EXHIBITS, PAPERS

RECORDS = Path(__file__).parents[1] / "reproduced"
FILE = "reproduced.html"


def link() -> str:
    """Return the link to the page, from a page in the site's top folder."""
    return f'<p><a href="{FILE}">The page of these records</a>, with all tables, plots, and reasons.</p>'


def make(app: Any, error: Exception | None) -> None:
    """Write the page into a site that is built."""
    if error is None and app.builder.format == "html":
        text = page(read_all(RECORDS, EXHIBITS), EXHIBITS, PAPERS)
        (Path(app.outdir) / FILE).write_text(text, encoding="utf-8")
