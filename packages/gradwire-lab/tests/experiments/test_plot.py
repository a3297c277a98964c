from __future__ import annotations

import math
import re

import pytest

from gradwire.page.picture import draw
from gradwire_lab.experiments.claim import Claim, Published, at_least, at_most, near, only
from gradwire_lab.experiments.claim_plot import plot
from support.pages import Page

FOUND = Claim("ratio", only(2.0), at_least(1), unit="x", published=Published("figure 1", (2.0, 3.0)))
SHARES = Claim("shares of $1$ & <2>", {"a": 0.1, "b": 0.4, "c": None}, near(0.2, 0.5), of_each=True)


def drawn(*claims: Claim) -> str:
    made = plot(claims, "study-figure-1", "what it shows")
    assert made is not None
    return draw(made)


def test_the_same_claims_give_the_same_bytes() -> None:
    first = drawn(FOUND, SHARES)
    assert drawn(FOUND, SHARES) == first
    assert drawn(Claim("ratio", only(2.5), at_least(1), unit="x"), SHARES) != first


def test_its_colours_are_the_page_s() -> None:
    assert all(f"var(--{name})" in drawn(FOUND) for name in ("ink", "published", "band"))


def test_a_figure_that_breaks_the_rule_is_a_cross_instead_of_a_dot() -> None:
    kept, broken = (drawn(Claim("x", only(2.0), at_most(most), unit="")) for most in (3.0, 1.0))
    curve = re.compile(r' d="M[^"a-z]*C')
    assert curve.search(kept)
    assert not curve.search(broken)


@pytest.mark.parametrize(
    "values", [[0.0], [-3.0, 5.0], [1e-9, 1e9], [0.0, math.inf], [5.0, math.nan, 5.0], [1e-3, 2.0, 900.0]]
)
def test_any_figures_can_be_drawn(values: list[float]) -> None:
    figures: dict[str, float | None] = {str(number): value for number, value in enumerate(values)}
    Page(
        drawn(*(Claim("x", figures, rule, of_each=True) for rule in (at_least(0), at_most(1e6), near(1, 0))))
    )


def test_without_a_figure_there_is_no_picture() -> None:
    assert plot([], "a", "") is None
    assert (
        plot([Claim("x", only(None), at_least(1)), Claim("y", only(math.nan), at_least(1))], "a", "") is None
    )
