"""The frame of every page: its head, the switch of themes, links to the sections, and the script."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.page.markup import Markup, element, together
from gradwire.page.style import script, style

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser lets the page load: nothing. Its style and script are inside."""


def document(title: str, links: Sequence[tuple[str, str]], parts: Sequence[Markup]) -> str:
    """Return an HTML file.

    Parameters
    ----------
    title
        Its only heading of the first level.
    links
        The ids of the sections, and what the links to them say.
    parts
        What stands below the links.
    """
    body = (
        element(
            "header",
            element("button", "Light or dark", id="theme", type="button", hidden=""),
            element("h1", title),
            element("nav", *_links(links), aria_label="Sections"),
        ),
        element("main", together(*parts, between="\n")),
        element("script", script()),
    )
    head = (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", style()),
    )
    whole = (element("head", together(*head, between="\n")), element("body", together(*body, between="\n")))
    return f"<!DOCTYPE html>\n{element('html', *whole, lang='en')}\n"


def _links(links: Sequence[tuple[str, str]]) -> list[Markup]:
    return [together(element("a", text, href=f"#{name}"), " ") for name, text in links]
