from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from gradwire.fields import to_values
from gradwire.line_rate.page import PAGES
from gradwire.records import make_record, to_json
from gradwire.timing.line import SCHEMA, Line, LineRate, Point
from support.pages import Page

LINE = Line(50e-6, 125e6, burst_nbytes=32_000)
POINTS = tuple(Point(1 << power, 1e-4 + 2.0**power / 1e9, 1e3 * 2.0**power, 1e9) for power in range(0, 24, 4))


def line_rate(pairs: int) -> Any:
    rate = LineRate(LINE, POINTS, {"cores": 2}, "here")
    described = [
        {"ranks": [0, rank], "line": asdict(LINE), "points": [asdict(point) for point in POINTS]}
        for rank in range(1, pairs + 1)
    ]
    fields = {"options": {"link": "1gbit"}, "topology": None, **to_values(rate), "pairs": described}
    return json.loads(to_json(make_record(SCHEMA, fields)))


@pytest.mark.parametrize("pairs", [1, 3])
def test_a_line_is_shown_in_words_tables_and_a_plot(pairs: int) -> None:
    html = PAGES[SCHEMA](line_rate(pairs))
    page = Page(html)
    assert html.index("The link: latency 50us, 1gbit, after a burst of 32kB.") < html.index("<table")
    assert page.headings[0] == (1, "Link between ranks 0 and 1, throttled to 1gbit")
    assert page.rows[1][0] == "1B"
    assert html.count("<figure>") == 1
    assert (["0 and 3", "50us", "1gbit", "32kB"] in page.rows) == (pairs == 3)
    assert PAGES[SCHEMA](line_rate(pairs)) == html
