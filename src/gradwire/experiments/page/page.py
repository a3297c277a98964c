"""The page: verdicts first, then each paper's tables and figures, then what the records were made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.experiments.page.markup import Markup, element, together
from gradwire.experiments.page.recorded import Recorded
from gradwire.experiments.page.sections import exhibit_section, made_with, summary
from gradwire.experiments.page.style import script, style
from gradwire.experiments.papers.exhibit import Exhibit

TITLE = "The papers' figures, reproduced"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What a browser lets the page load: nothing. Its style and script are inside."""
RULES = (
    "A claim has a rule, and its verdict follows from the record's samples and that rule alone. Reproduced: "
    "measured, and the rule is kept. Modelled: kept by a model's figures. Explained: not kept, but a second "
    "rule is, which follows from a stated reason. Not reproduced: neither."
)


def page(recorded: Sequence[Recorded], exhibits: Sequence[Exhibit[Any]], titles: Mapping[str, str]) -> str:
    """Return the HTML file of records in any order.

    Parameters
    ----------
    recorded
        What was read and judged.
    exhibits
        All that could have a record, in the order of the page.
    titles
        The papers by name.
    """
    order = [each.name for each in exhibits]
    known = sorted(recorded, key=lambda each: order.index(each.judged.exhibit.name))
    missing = [name for name in order if name not in {each.judged.exhibit.name for each in known}]
    papers = [_paper(name, title, known) for name, title in titles.items()]
    links = [("summary", "Summary"), *((name, name) for name in titles), ("machine", "Machine and versions")]
    present = [link for link in links if link[0] not in titles or _of(link[0], known)]
    body = (
        element("button", "Light or dark", id="theme", type="button", hidden=""),
        element("h1", TITLE),
        element("nav", *_links(present), aria_label="Sections"),
        element(
            "main",
            summary(known, titles, missing),
            element("p", RULES, class_="note"),
            *papers,
            made_with(known),
        ),
        element("script", script()),
    )
    head = (
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", TITLE),
        element("link", rel="icon", href="data:,"),
        element("style", style()),
    )
    parts = (element("head", together(*head, between="\n")), element("body", together(*body, between="\n")))
    return f"<!DOCTYPE html>\n{element('html', *parts, lang='en')}\n"


def _of(paper: str, recorded: Sequence[Recorded]) -> list[Recorded]:
    return [each for each in recorded if each.judged.exhibit.paper == paper]


def _paper(name: str, title: str, recorded: Sequence[Recorded]) -> Markup:
    own = _of(name, recorded)
    heading = element("h2", f"{name}: {title}", id=name)
    return together(heading, *map(exhibit_section, own), between="\n") if own else Markup()


def _links(links: Sequence[tuple[str, str]]) -> list[Markup]:
    return [together(element("a", text, href=f"#{name}"), " ") for name, text in links]
