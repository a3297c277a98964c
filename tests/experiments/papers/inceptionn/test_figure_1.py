from __future__ import annotations

import pytest

from gradwire.experiments import perform
from gradwire.experiments.papers.inceptionn.figure_1 import (
    EXHIBIT,
    FLAT,
    LATENCY_S,
    LEAVES,
    LINK,
    NBYTES_PER_S,
    RINGS,
    TREE,
    Options,
    formula_s,
)
from gradwire.timing.closed_form.formulas import ring_s

TIMES = {FLAT: 30.0, TREE: 12.0, LEAVES: 3.0, RINGS: 1.9}


def rows(times: dict[str, float], busiest: dict[str, float] | None = None) -> list[dict[str, object]]:
    loads = {FLAT: 8.0, TREE: 3.2, LEAVES: 1.6, RINGS: 1.0} | (busiest or {})
    return [
        {
            "organisation": name,
            "seconds": [seconds, 2 * seconds],
            "formula_s": TIMES[name],
            "busiest_over_mean": loads[name],
        }
        for name, seconds in (TIMES | times).items()
    ]


def failed(found: list[dict[str, object]]) -> list[int]:
    return [number for number, claim in enumerate(EXHIBIT.claims(found)) if not claim.is_met]


def test_verdicts_follow_from_the_times_and_the_bytes() -> None:
    assert failed(rows({})) == []
    assert failed(rows({FLAT: 12.0})) == [0, 3]
    assert failed(rows({LEAVES: 11.5})) == [1, 3]
    assert failed(rows({RINGS: 2.9})) == [2, 3]
    assert failed(rows({}, {TREE: 1.5})) == [4]
    assert failed(rows({}, {RINGS: 1.2})) == [5]


def test_formulas_add_the_levels_up() -> None:
    message_s, half_s = LATENCY_S + 4e6 / NBYTES_PER_S, LATENCY_S + 2e6 / NBYTES_PER_S
    assert formula_s(FLAT, 8, 4e6) == pytest.approx(14 * message_s)
    assert formula_s(TREE, 8, 4e6) == pytest.approx((2 + 6) * message_s)
    assert formula_s(LEAVES, 8, 4e6) == pytest.approx((2 + 6) * half_s)
    # Rings on both levels move what one ring of all moves, in fewer steps.
    saved_s = (2 * 7 - 8) * LATENCY_S
    assert formula_s(RINGS, 8, 4e6) == pytest.approx(ring_s(8, 4e6, LINK) - saved_s)


def test_organisations_are_timed_and_their_bytes_counted() -> None:
    found = perform(EXHIBIT.experiment, Options(4, 40_000, 1), quiet=True)
    assert [row["organisation"] for row in found] == [FLAT, TREE, LEAVES, RINGS]
    # Two groups of two: the root sends to its worker and to the other root, which sends up and to its own.
    assert found[1]["busiest_over_mean"] == pytest.approx(2 * 4 / (1 + 1 + 2 + 2))
    assert found[3]["busiest_over_mean"] == pytest.approx(1.0)
