from __future__ import annotations

import math
import re

import matplotlib
import pytest

from gradwire.experiments.claim import Claim, Published, at_least, at_most, near, only
from gradwire.experiments.page.plot import can_draw, plot
from support.pages import Page

FOUND = Claim("ratio", only(2.0), at_least(1), unit="x", published=Published("figure 1", (2.0, 3.0)))
SHARES = Claim("shares of $1$ & <2>", {"a": 0.1, "b": 0.4, "c": None}, near(0.2, 0.5), of_each=True)


def drawn(*claims: Claim, name: str = "study-figure-1") -> str:
    made = plot(claims, name)
    assert made is not None
    return made


def test_the_picture_is_an_element_without_addresses_sizes_or_rules_for_others() -> None:
    made = drawn(FOUND, SHARES)
    page = Page(made)
    assert not re.search(r"http|<style|<metadata|<\?xml|<!|width=\"\d+pt", made)
    tag, attributes = page.attributes[0]
    assert (tag, attributes["role"]) == ("svg", "img")
    assert len(page.ids) == len({*page.ids})
    assert all(each.startswith("study-figure-1-") for each in page.ids)
    used = {*re.findall(r'(?:href="|url\()#([^")]*)', made)}
    assert used
    assert used <= {*page.ids}


def test_its_colours_are_the_page_s() -> None:
    made = drawn(FOUND)
    assert {"var(--ink)", "var(--published)", "var(--band)"} <= {*re.findall(r"var\(--\w+\)", made)}
    assert not re.search(r"#[0-9a-f]{6}\b", made)


def test_the_same_claims_give_the_same_bytes_whatever_the_reader_s_settings() -> None:
    first = drawn(FOUND, SHARES)
    with matplotlib.rc_context({"svg.hashsalt": None, "font.size": 20, "svg.fonttype": "none"}):
        assert drawn(FOUND, SHARES) == first
        assert matplotlib.rcParams["font.size"] == 20
    assert drawn(Claim("ratio", only(2.5), at_least(1), unit="x"), SHARES) != first


def test_a_figure_that_breaks_the_rule_is_a_cross_instead_of_a_dot() -> None:
    kept, broken = (drawn(Claim("x", only(2.0), at_most(most), unit="")) for most in (3.0, 1.0))
    assert "\nC " in kept  # curves
    assert "\nC " not in broken


@pytest.mark.parametrize(
    "values", [[0.0], [-3.0, 5.0], [1e-9, 1e9], [0.0, math.inf], [5.0, math.nan, 5.0], [1e-3, 2.0, 900.0]]
)
def test_any_figures_can_be_drawn(values: list[float]) -> None:
    figures: dict[str, float | None] = {str(number): value for number, value in enumerate(values)}
    Page(
        drawn(*(Claim("x", figures, rule, of_each=True) for rule in (at_least(0), at_most(1e6), near(1, 0))))
    )


def test_without_a_figure_there_is_no_picture() -> None:
    assert can_draw()
    assert plot([], "a") is None
    assert plot([Claim("x", only(None), at_least(1)), Claim("y", only(math.nan), at_least(1))], "a") is None
