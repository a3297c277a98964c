from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gradwire.costs import ExchangeCost, Scales


def test_costs_add_up_field_by_field() -> None:
    names = [field.name for field in fields(ExchangeCost) if field.name != "scales"]
    amounts: list[dict[str, Any]] = [
        {name: factor * (i + 1) for i, name in enumerate(names)} for factor in (1, 10)
    ]
    one, ten = (ExchangeCost(**each) for each in amounts)
    total = sum([one, ten], start=ExchangeCost())
    assert [getattr(total, name) for name in names] == [11 * (i + 1) for i in range(len(names))]
    assert total - ten == one


@pytest.mark.parametrize(
    ("exponents", "total"),
    [
        ([], Scales()),
        ([0, 0], Scales(unscaled=2)),
        ([-3], Scales(-3, -3)),
        ([5, -3, 0, 20], Scales(-3, 20, 1)),
    ],
)
def test_scales_add_up_to_their_range(exponents: list[int], total: Scales) -> None:
    for order in (exponents, exponents[::-1]):
        assert sum(map(Scales.of, order), Scales()) == total
    costs = [ExchangeCost(frames=1, scales=Scales.of(each)) for each in exponents]
    cost = sum(costs, ExchangeCost())
    assert cost == ExchangeCost(frames=len(exponents), scales=total)
    assert bool(total) == bool(exponents)
    assert (cost - ExchangeCost(frames=1)).scales == total
    assert cost.towards(ExchangeCost(frames=9), 0.5) == ExchangeCost(frames=(len(exponents) + 9) / 2)  # type: ignore[arg-type]


def test_the_ratio_compares_floats_sent_with_bytes_on_the_wire() -> None:
    assert ExchangeCost(raw_nbytes=4000, wire_nbytes=1000).ratio == 4.0
    assert ExchangeCost().ratio == 1.0
