from __future__ import annotations

from dataclasses import fields

from gradwire.costs import ExchangeCost


def test_costs_add_up_field_by_field() -> None:
    names = [field.name for field in fields(ExchangeCost)]
    one = ExchangeCost(**{name: i + 1 for i, name in enumerate(names)})
    ten = ExchangeCost(**{name: 10 * (i + 1) for i, name in enumerate(names)})
    total = sum([one, ten], start=ExchangeCost())
    assert [getattr(total, name) for name in names] == [11 * (i + 1) for i in range(len(names))]
    assert total - ten == one


def test_the_ratio_compares_floats_sent_with_bytes_on_the_wire() -> None:
    assert ExchangeCost(raw_nbytes=4000, wire_nbytes=1000).ratio == 4.0
    assert ExchangeCost().ratio == 1.0
