"""The table that people read, word by word."""

from __future__ import annotations

import pytest

from gradwire.costs import ExchangeCost, Scales
from gradwire.sync.ledger.counts import BucketCounts, BypassCounts, Tally
from gradwire.sync.ledger.summary import Summary
from support.pages import Page

BUCKETS = {
    "bucket 1": BucketCounts(
        exchanges=2,
        gradient_nbytes=3_000_000,
        exposed_s=0.3,
        cost=ExchangeCost(0.01, 0.01, 0.23, 0.25, 4_000_000, 1_000_000),
    ),
    "the other": BucketCounts(2, 1000, 0.1, cost=ExchangeCost(0.0, 0.0, 0.0995, 0.0005, 2000, 2000)),
}


def test_a_table_with_bypasses() -> None:
    bypasses = {"its gradient is sparse": BypassCounts(1, 999_000), "it is on cuda": BypassCounts(2, 4)}
    assert str(Summary(0, 2, 4.0, Tally(BUCKETS, bypasses), ("The log failed: full",))) == (
        "gradwire, rank 0: 2 steps in 4s\n"
        "training waited 400ms (10.0% of the time) for exchanges that took 600ms; 3.99 times fewer bytes on "
        "the wire\n"
        "\n"
        "bucket     exchanges      raw     wire  ratio  lost  codec   wait  exposed\n"
        "--------------------------------------------------------------------------\n"
        "bucket 1           2      4MB      1MB   4.00     -   20ms  250ms    300ms\n"
        "the other          2      2kB      2kB   1.00     -      0  500us    100ms\n"
        "--------------------------------------------------------------------------\n"
        "total              4  4.002MB  1.002MB   3.99     -   20ms  250ms    400ms\n"
        "\n"
        "compression did not run for 999004 of 4000004 bytes (25.0%):\n"
        "  its gradient is sparse: 1 time, 999000 bytes\n"
        "  it is on cuda: 2 times, 4 bytes\n"
        "The log failed: full"
    )


def test_a_table_without_anything() -> None:
    lines = str(Summary(3, 0, 0.0, Tally())).splitlines()
    assert lines[:2] == [
        "gradwire, rank 3: 0 steps in 0",
        "training waited 0 for exchanges that took 0; 1.00 times fewer bytes on the wire",
    ]
    assert lines[-1] == "no gradient bypassed the codec"


def test_where_headers_outweigh_what_is_saved_it_says_more() -> None:
    text = str(
        Summary(
            0,
            1,
            1.0,
            Tally({"bucket 1": BucketCounts(1, cost=ExchangeCost(raw_nbytes=400, wire_nbytes=700))}),
        )
    )
    assert "; 1.75 times as many bytes on the wire as in the gradients, including headers\n" in text


def test_what_is_not_finite_is_said_and_where_it_was() -> None:
    counts = {
        name: BucketCounts(8, cost=ExchangeCost(nonfinite=often))
        for name, often in (("first", 1), ("last", 5), ("no", 0))
    }
    text = str(Summary(0, 8, 1.0, Tally(counts)))
    assert (
        "\n6 of 24 exchanges returned NaN or infinity, most often last (5 times), first (1 time); check "
        "the loss\n"
    ) in text


@pytest.mark.parametrize(
    ("scales", "line"),
    [
        (Scales(-3, 20), "frames were scaled by 2^-3 to 2^20"),
        (Scales(7, 8, 1), "frames were scaled by 2^7 to 2^8, and 1 were not scaled"),
        (Scales(unscaled=5), "the plan's scale changed no frame"),
    ],
)
def test_what_frames_were_scaled_by_is_said(scales: Scales, line: str) -> None:
    counts = BucketCounts(1, cost=ExchangeCost(raw_nbytes=400, wire_nbytes=200, scales=scales))
    assert str(Summary(0, 1, 1.0, Tally({"bucket 1": counts}))).splitlines()[-2] == line


def test_where_all_went_around_it_says_so() -> None:
    text = str(Summary(0, 1, 1.0, Tally({}, {"the group is NCCL's": BypassCounts(5, 100)})))
    assert "compression did not run for 100 of 100 bytes (100.0%):" in text


def test_a_notebook_shows_the_verdict_and_the_table_escaped() -> None:
    tally = Tally({"bucket <1>": BUCKETS["bucket 1"]})
    page = Page(Summary(0, 2, 4.0, tally, ("The <b>log</b> failed",))._repr_html_())
    assert page.text.index("Training waited 300ms") < page.text.index("bucket <1>")
    assert [row[0] for row in page.rows] == ["bucket", "bucket <1>", "total"]
    assert "The <b>log</b> failed" in page.text
