"""Counts add up in any order and grouping, and come back from their state."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.costs import ExchangeCost, Scales
from gradwire.errors import StateError
from gradwire.sync.ledger.counts import BucketCounts, BypassCounts, Tally

whole = st.integers(0, 1 << 40)
seconds = st.integers(0, 1 << 20).map(lambda n: n / 1024)  # whose sums are exact
scales = st.lists(st.integers(-126, 126).map(Scales.of)).map(lambda each: sum(each, Scales()))
amounts = (seconds, seconds, seconds, seconds, whole, whole, whole, whole, seconds)
costs = st.builds(ExchangeCost, *amounts, scales=scales)
counts = st.builds(BucketCounts, whole, whole, seconds, costs)
names = st.sampled_from(["bucket 1", "bucket 2", "gradient"])
tallies = st.builds(
    Tally,
    st.dictionaries(names, counts),
    st.dictionaries(st.sampled_from(["sparse", "frozen"]), st.builds(BypassCounts, whole, whole)),
)


@given(st.lists(counts, min_size=1, max_size=5))
def test_a_sum_of_buckets_is_that_of_its_figures(rows: list[BucketCounts]) -> None:
    total = sum(rows, BucketCounts())
    assert (total.exchanges, total.gradient_nbytes, total.exposed_s) == tuple(
        sum(getattr(row, name) for row in rows) for name in ("exchanges", "gradient_nbytes", "exposed_s")
    )
    *columns, _ = zip(*(astuple(row.cost) for row in rows), strict=True)
    assert astuple(total.cost)[:-1] == tuple(map(sum, columns))
    assert total.cost.scales == sum((row.cost.scales for row in rows), Scales())


@given(tallies, tallies)
def test_tallies_add_up_bucket_by_bucket_and_reason_by_reason(one: Tally, other: Tally) -> None:
    before, total = other.state(), Tally()
    total.add(one)
    total.add(other)
    for name in {*one.buckets, *other.buckets}:
        assert total.buckets[name] == one.buckets.get(name, BucketCounts()) + other.buckets.get(
            name, BucketCounts()
        )
    assert total.total == one.total + other.total
    assert total.bypassed == one.bypassed + other.bypassed
    assert list(total.buckets) == list(dict.fromkeys([*one.buckets, *other.buckets]))
    assert other.state() == before
    assert bool(total) == (bool(one) or bool(other))


@given(tallies)
def test_a_state_through_json_is_the_same_tally(tally: Tally) -> None:
    assert Tally.of_state(json.loads(json.dumps(tally.state()))) == tally


ROW = Tally({"a": BucketCounts()}).state()["buckets"]["a"]
ALTERED = {**ROW, "cost": {**ROW["cost"], "scales": [1, 2]}}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, "an object with named fields for a ledger's state, got None"),
        (
            {"buckets": {}, "bypasses": 3},
            "an object with named fields for bypasses in a ledger's state, got 3",
        ),
        (
            {"buckets": {"a": {}}},
            "the fields exchanges, gradient_nbytes, exposed_s, cost for buckets.a in a ledger's state, got "
            "no field 'exchanges'",
        ),
        (
            {"buckets": {"a": ALTERED}, "bypasses": {}},
            "an object with named fields for buckets.a.cost.scales in a ledger's state, got [1, 2]",
        ),
        (
            {"buckets": {}, "bypasses": {"why": {"count": True, "nbytes": 2}}},
            "a whole number of at least 0 for bypasses.why.count in a ledger's state, got True",
        ),
    ],
)
def test_what_is_no_state_of_a_tally_is_refused(state: Any, reason: str) -> None:
    with pytest.raises(StateError) as caught:
        Tally.of_state(state)
    assert str(caught.value) == f"expected {reason}; omit this state, so the ledger starts from zero"


@pytest.mark.parametrize("name", [*ROW, "cost.wait_s"])
def test_no_figure_may_be_missing(name: str) -> None:
    row = {**ROW, "cost": {**ROW["cost"]}}
    if name == "cost":
        row["cost"] = None
    else:
        del (row["cost"] if "." in name else row)[name.rpartition(".")[2]]
    with pytest.raises(StateError, match=r"for buckets\.a.* in a ledger's state, got"):
        Tally.of_state({"buckets": {"a": row}, "bypasses": {}})


@pytest.mark.parametrize("later", ["device_nbytes", "scales"])
def test_a_state_of_before_something_was_counted_is_read(later: str) -> None:
    tally = Tally({"bucket 1": BucketCounts(1, cost=ExchangeCost(wire_nbytes=8))})
    state = json.loads(json.dumps(tally.state()))
    del state["buckets"]["bucket 1"]["cost"][later]
    assert Tally.of_state(state) == tally
