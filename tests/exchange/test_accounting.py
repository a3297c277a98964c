from __future__ import annotations

from dataclasses import fields

from gradwire.exchange import Accounting


def test_accountings_add_up_field_by_field() -> None:
    names = [field.name for field in fields(Accounting)]
    one = Accounting(**{name: i + 1 for i, name in enumerate(names)})
    ten = Accounting(**{name: 10 * (i + 1) for i, name in enumerate(names)})
    total = sum([one, ten], start=Accounting())
    assert [getattr(total, name) for name in names] == [11 * (i + 1) for i in range(len(names))]


def test_the_ratio_compares_floats_sent_with_bytes_on_the_wire() -> None:
    assert Accounting(raw_nbytes=4000, wire_nbytes=1000).ratio == 4.0
    assert Accounting().ratio == 1.0
