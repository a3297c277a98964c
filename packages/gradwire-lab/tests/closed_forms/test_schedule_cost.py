"""The walk over a schedule's steps and the closed forms agree, which the papers give for some worlds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradwire import collectives
from gradwire_lab.closed_forms import formulas
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from support.schedule_cost import cost

LINK = AlphaBetaGamma(13e-6, 0.8e-9, 0.11e-9)
POWERS = (2, 4, 8, 16, 32, 64)

Formula = Callable[[int, float, AlphaBetaGamma], float]

CLOSED: list[tuple[str, Formula, int]] = [
    *(("ring", formulas.ring_s, world) for world in (*range(1, 18), 64)),
    *(("star", formulas.star_s, world) for world in (*range(1, 18), 64)),
    *(("tree", formulas.tree_s, world) for world in POWERS),
    *(("butterfly", formulas.butterfly_s, world) for world in POWERS),
]


@pytest.mark.parametrize(("name", "formula", "world"), CLOSED)
def test_the_walk_meets_the_closed_form(name: str, formula: Formula, world: int) -> None:
    """Each constant alone, and all of them: so the terms are right one by one."""
    for link in (
        LINK,
        AlphaBetaGamma(1.0, 0.0),
        AlphaBetaGamma(0.0, 1.0),
        AlphaBetaGamma(1e-30, 1e-30, 1.0),
    ):
        walked = cost(collectives.get(name), world, 1e6, link)
        assert walked.total_s == pytest.approx(formula(world, 1e6, link), rel=1e-12, abs=1e-20)
