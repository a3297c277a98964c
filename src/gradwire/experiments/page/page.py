"""The page: verdicts first, then each paper's tables and figures, then what the records were made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.experiments.page.recorded import Recorded
from gradwire.experiments.page.sections import exhibit_section, summary
from gradwire.experiments.papers.exhibit import Exhibit
from gradwire.page import made_with
from gradwire.page.document import document
from gradwire.page.markup import Markup, element, together

TITLE = "The papers' figures, reproduced"
RULES = (
    "A claim has a rule, and its verdict follows from the record's samples and that rule alone. Did not "
    "learn: a training that the figure rests on failed, so the figure counts for nothing. Reproduced: "
    "measured, and the rule is kept. Exceeded: better than published, for a stated reason. Explained: "
    "not kept, but a second rule is, which follows from a stated reason. Too short: one of these, but with "
    "too few trainings. Not reproduced: none of these. What wasn't measured stands apart: modelled, "
    "calibrated (set from the published figure or its table), and arithmetic (published numbers recombined)."
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
    links = [("summary", "Summary"), *((name, name) for name in titles), (made_with.ID, made_with.TITLE)]
    present = [link for link in links if link[0] not in titles or _of(link[0], known)]
    parts = (
        summary(known, titles, missing),
        element("p", RULES, class_="note"),
        *papers,
        made_with.made_with([(each.judged.exhibit.name, each.fields) for each in known]),
    )
    return document(TITLE, present, parts)


def _of(paper: str, recorded: Sequence[Recorded]) -> list[Recorded]:
    return [each for each in recorded if each.judged.exhibit.paper == paper]


def _paper(name: str, title: str, recorded: Sequence[Recorded]) -> Markup:
    own = _of(name, recorded)
    heading = element("h2", f"{name}: {title}", id=name)
    return together(heading, *map(exhibit_section, own), between="\n") if own else Markup()
