from __future__ import annotations

import pytest

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.experiments import perform
from gradwire_lab.experiments.hosts import exchanges
from gradwire_lab.experiments.hosts.exchanges import ExchangeOptions
from gradwire_lab.experiments.papers.inceptionn.figure_15 import (
    EXHIBIT,
    FORMULAS,
    INC,
    WA,
)
from support.fake_hosts import fake_exchanges

LINE = {"line_latency_s": 1e-4, "line_nbytes_per_s": 5e6}
GROWS, STRAIGHT, WA_FORMULA, CONSTANT, INC_FORMULA = range(5)


def rows(**times: float) -> list[dict[str, object]]:
    """Return rows that take so many times what their formulas say, by organisation and workers."""
    return [
        {
            "organisation": name,
            "workers": workers,
            "nbytes": 1_000_000,
            "seconds": [
                times.get(f"{name}{workers}", 1.05) * formula(workers, 1e6, AlphaBetaGamma(1e-4, 2e-7))
            ],
            **LINE,
        }
        for name, formula in FORMULAS.items()
        for workers in (4, 6, 8)
    ]


def failed(found: list[dict[str, object]]) -> list[int]:
    return [number for number, claim in enumerate(EXHIBIT.claims(found)) if not claim.is_met]


def test_times_of_the_formulas_are_reproduced() -> None:
    assert failed(rows()) == []


def test_verdicts_follow_from_the_times_on_both_sides() -> None:
    assert failed(rows(INC8=1.5)) == [CONSTANT, INC_FORMULA], "it grows"
    assert failed(rows(INC8=0.7)) == [CONSTANT, INC_FORMULA], "it shrinks"
    assert failed(rows(WA6=1.19)) == [STRAIGHT]
    assert failed(rows(WA4=1.5, WA6=1.3)) == [GROWS, WA_FORMULA], "it hardly grows"
    assert failed(rows(WA4=0.7, WA6=0.95)) == [GROWS, WA_FORMULA], "it grows by more than the workers"


def test_an_aggregator_that_is_measured_in_the_place_of_the_ring_fails() -> None:
    swapped = [row | {"seconds": own["seconds"]} for row, own in zip(rows(), rows()[:3] * 2, strict=True)]
    assert {CONSTANT, INC_FORMULA} <= {*failed(swapped)}


@pytest.mark.parametrize("name", [WA, INC])
def test_a_removed_comparator_is_missed(name: str) -> None:
    with pytest.raises(KeyError):
        EXHIBIT.claims([row for row in rows() if row["organisation"] != name])


def test_formulas_have_the_line_of_the_hosts() -> None:
    faster = [row | {"line_nbytes_per_s": 1e7} for row in rows()]
    assert failed(faster) == [WA_FORMULA, INC_FORMULA]


def test_all_workers_are_the_first_hosts_of_one_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_exchanges(monkeypatch, exchanges)
    found = perform(EXHIBIT.experiment, ExchangeOptions((4, 8), 1800, 40_000, 2), quiet=True)
    assert asked == {"most": 2, "budget_s": 15.0, "line_nbytes": 1 << 20}
    assert {(row["hosts"], row["rate"]) for row in found} == {(9, "200mbit")}
    assert [(row["ranks"], row["algorithm"], row.get("down")) for row in found] == [
        (5, "star", "tree"),
        (9, "star", "tree"),
        (4, "ring", None),
        (8, "ring", None),
    ]
