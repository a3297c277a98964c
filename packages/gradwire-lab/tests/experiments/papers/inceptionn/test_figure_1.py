from __future__ import annotations

import pytest

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, ring_s
from gradwire_lab.experiments import perform
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.papers.inceptionn.figure_1 import (
    EXHIBIT,
    FLAT,
    LEAVES,
    RINGS,
    TREE,
    InceptionnFigure1Options,
    busiest_over_mean,
    formula_s,
)
from support.fake_hosts import fake_exchanges

LINK = AlphaBetaGamma(2e-4, 1 / 5e6)
LINE = {"line_latency_s": 2e-4, "line_nbytes_per_s": 5e6}
FOUND = {name: formula_s(name, 8, 4e6, LINK) for name in (FLAT, TREE, LEAVES, RINGS)}


def rows(times: dict[str, float], busiest: dict[str, float] | None = None) -> list[dict[str, object]]:
    """Return rows that take so many times what their formulas say: 1.05 by default."""
    loads = {FLAT: 8.0, TREE: 3.2, LEAVES: 1.6, RINGS: 1.0} | (busiest or {})
    return [
        {
            "organisation": name,
            "hosts": 8,
            "nbytes": 4_000_000,
            "seconds": [0.1 * best_s, best_s * times.get(name, 1.05), 9 * best_s],
            "busiest_over_mean": loads[name],
            **LINE,
        }
        for name, best_s in FOUND.items()
    ]


def failed(found: list[dict[str, object]]) -> list[int]:
    return [number for number, claim in enumerate(EXHIBIT.claims(found)) if not claim.is_met]


def test_verdicts_follow_from_the_times_and_the_bytes() -> None:
    assert failed(rows({})) == []
    assert failed(rows({FLAT: 0.6})) == [0, 3]
    assert failed(rows({LEAVES: 1.95})) == [1, 3]
    assert failed(rows({LEAVES: 0.45})) == [2, 3], "faster than its own formula"
    assert failed(rows({RINGS: 2.3})) == [2, 3]
    assert failed(rows({}, {TREE: 1.5})) == [4]
    assert failed(rows({}, {RINGS: 1.2})) == [5]


def test_another_line_than_the_hosts_own_fails() -> None:
    """A set constant in the place of the measured line is no model of these hosts."""
    assert failed([{**row, "line_nbytes_per_s": 2 * 5e6} for row in rows({})]) == [3]


def test_formulas_add_the_levels_up() -> None:
    message_s, half_s = 2e-4 + 4e6 / 5e6, 2e-4 + 2e6 / 5e6
    assert formula_s(FLAT, 8, 4e6, LINK) == pytest.approx(14 * message_s)
    assert formula_s(TREE, 8, 4e6, LINK) == pytest.approx((2 + 6) * message_s)
    assert formula_s(LEAVES, 8, 4e6, LINK) == pytest.approx((2 + 6) * half_s)
    # Rings on both levels move what one ring of all moves, in fewer steps.
    saved_s = (2 * 7 - 8) * 2e-4
    assert formula_s(RINGS, 8, 4e6, LINK) == pytest.approx(ring_s(8, 4e6, LINK) - saved_s)


def test_organisations_are_timed_on_one_testbed_and_their_bytes_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = fake_exchanges(monkeypatch, exchanges)
    found = perform(EXHIBIT.experiment, InceptionnFigure1Options(4, 1600, 40_000, 1), quiet=True)
    assert [row["organisation"] for row in found] == [FLAT, TREE, LEAVES, RINGS]
    assert {(row["hosts"], row["rate"]) for row in found} == {(4, "400mbit")}
    assert asked == {"most": 1, "budget_s": 20.0, "line_nbytes": 1 << 20}
    # Two groups of two: the root sends to its worker and to the other root, which sends up and to its own.
    assert found[1]["busiest_over_mean"] == pytest.approx(2 * 4 / (1 + 1 + 2 + 2))
    assert found[3]["busiest_over_mean"] == busiest_over_mean("hierarchical:2", 4) == pytest.approx(1.0)
