"""The prediction experiment: its grid, its choices, and its errors."""

from __future__ import annotations

import argparse

import pytest

from gradwire.errors import GradwireError
from gradwire.planner.predict import UNCERTAINTY
from gradwire.tables import Table, lines
from gradwire_lab.experiments import prediction
from gradwire_lab.experiments.prediction import ALGORITHMS, CODECS, SHARDED, choose, table


def row(algorithm: str, codec: str, measured_s: float, predicted_s: float) -> dict[str, object]:
    cell = {"hosts": 2, "rate": "1gbit", "nbytes": 2 << 20, "algorithm": algorithm, "codec": codec}
    times = {"fastest_s": measured_s, "slowest_s": measured_s, "predicted_s": predicted_s}
    return {**cell, "segment_nbytes": 1 << 20, "measured_s": measured_s, **times}


def step_row(
    codec: str, buckets: int, lanes: int, measured_s: float, predicted_s: float
) -> dict[str, object]:
    found = row("ring", codec, measured_s, predicted_s)
    return {**found, "delay": "25ms", "buckets": buckets, "lanes": lanes}


def test_the_grid_leaves_out_what_cannot_be() -> None:
    cells = prediction.cells(prediction.PredictionOptions(((3, "1gbit", ""), (4, "1gbit", "")), (1 << 20,)))
    by_hosts = {hosts: [cell for cell in cells if cell["hosts"] == hosts] for hosts in (3, 4)}
    assert {cell["algorithm"] for cell in by_hosts[4]} == set(ALGORITHMS)
    assert {cell["algorithm"] for cell in by_hosts[3]} == set(ALGORITHMS) - {"hierarchical"}
    assert [cell["codec"] for cell in by_hosts[3] if cell["algorithm"] == "backend"] == ["identity"]
    assert [len(group) for group in by_hosts.values()] == [13, 16]
    assert len(prediction.cells(prediction.PredictionOptions())) == 180


def test_among_ties_the_simplest_plan_is_chosen() -> None:
    fast, tie = row("ring", "quantize:8", 1.0, 1.0), row("star", "identity", 1.1, 1.0 + 0.9 * UNCERTAINTY)
    slow = row("ring", "identity", 0.9, 1.0 + 1.2 * UNCERTAINTY)
    assert choose([fast, slow, tie]) is tie
    assert choose([fast, slow]) is fast
    earlier = row("ring", "identity", 1.1, 1.0)
    assert choose([tie, earlier]) is earlier


def test_its_table_rates_points_and_choices() -> None:
    rows = [
        row("ring", "identity", 1.0, 1.1),
        row("star", "identity", 0.8, 1.5),
        row("ring", "errbound:2^-10", 0.5, 0.4),
        row("sharded", "errbound:2^-10", 0.2, 0.24),
    ]
    title, _, first, _, second, _, errors, _, good = table(rows)
    assert title == "2 hosts at 1gbit, 2MiB:"
    assert isinstance(first, Table)
    assert [line[-1] for line in first.rows] == ["+10.0", "+87.5", "-20.0", "+20.0"]
    assert errors == "Error of 4 predictions: median 20.0 %, 90th percentile 87.5 %, largest 87.5 %."
    assert isinstance(second, Table)
    assert [line[-1] for line in second.rows] == ["25.0", "0.0", "0.0"]
    assert [line[1] for line in second.rows] == ["ring identity", *["ring errbound:2^-10"] * 2]
    assert str(good).startswith("2 of 3 choices by prediction are within 3 %")


def test_the_summary_has_a_row_for_each_network_and_counts_choices_of_every_size() -> None:
    near = [row("ring", "identity", 1.0, 1.1), row("star", "identity", 0.8, 1.5)]
    near += [{**each, "nbytes": 8 << 20} for each in (*near, row("sharded", "identity", 0.1, 0.1))]
    distant = [step_row("identity", 1, 1, 1.0, 1.02), step_row("fp8", 16, 4, 0.5, 0.4)]
    assert prediction.summary([*near, *distant]).rows == [
        ("2 hosts at 1gbit", "5", "10.0", "87.5", "87.5", "0 of 6"),
        ("2 hosts at 1gbit, round trip 50ms", "2", "20.0", "20.0", "20.0", "3 of 3"),
    ]


def test_no_line_is_too_long_and_no_word_is_cut() -> None:
    rows = [row("hierarchical", codec, 1.0, 1.1) for codec in CODECS]
    told = lines(*table(rows))
    assert max(map(len, told)) <= 80
    assert any("hierarchical" in line for line in told[: len(told) // 2])
    for line in told:
        assert ("hier" in line) == ("hierarchical" in line)


def test_sharded_exchanges_are_asked_for() -> None:
    options = prediction.PredictionOptions(((3, "1gbit", ""),), (1 << 20,), sharded=True)
    sharded = [cell["codec"] for cell in prediction.cells(options) if cell["algorithm"] == SHARDED]
    assert sharded == list(CODECS)


@pytest.mark.parametrize(
    "networks",
    ["4", "4:", ":1gbit", "four:1gbit", "1:1gbit", "4:fast", "4:1gbit,", "4:1gbit:", "4:1gbit:25ms:1", "far"],
)
def test_a_mistaken_network_is_one_sentence(networks: str) -> None:
    with pytest.raises(GradwireError) as caught:
        prediction.EXPERIMENT.read(argparse.Namespace(networks=networks, sizes="2MiB", with_sharded=False))
    assert "\n" not in str(caught.value)


def read(networks: str) -> prediction.PredictionOptions:
    return prediction.EXPERIMENT.read(
        argparse.Namespace(networks=networks, sizes="8MiB,1MB", with_sharded=False)
    )


def test_networks_and_sizes_are_read() -> None:
    options = read("4:1gbit,2:unlimited,2:200mbit:25ms,4:1gbit:0,4:1gbit")
    networks = ((4, "1gbit", ""), (2, "unlimited", ""), (2, "200mbit", "25ms"))
    assert options == prediction.PredictionOptions(networks, (1_000_000, 8 << 20))
    assert read("near").networks == prediction.PredictionOptions().networks
    assert {delay for *_, delay in read("distant").networks} == {"5ms", "25ms"}
    assert read("distant,near").networks == (*prediction.DISTANT, *prediction.NEAR)


def test_distant_hosts_train_steps_with_lanes_and_other_cells_have_neither_delay_nor_lanes() -> None:
    distant = prediction.cells(prediction.PredictionOptions(((2, "50mbit", "5ms"),), (8 << 20,)))
    plans = {(cell["codec"], cell["buckets"], cell["lanes"]) for cell in distant}
    assert len(distant) == len(plans) == 12
    assert {lanes for _, buckets, lanes in plans if buckets == 16} == {1, 4, 16}
    assert {cell["delay"] for cell in distant} == {"5ms"}
    near = prediction.cells(prediction.PredictionOptions())
    assert not any({"delay", "buckets", "lanes"} & set(cell) for cell in near), "older rows are theirs"


def test_steps_between_distant_hosts_have_a_table_and_a_summary_of_their_own() -> None:
    near = [row("ring", "identity", 1.0, 1.5)]
    distant = [
        step_row("identity", 1, 1, 1.0, 1.02),
        step_row("identity", 16, 4, 0.9, 0.9 * 0.99),
        step_row("fp8", 16, 16, 0.5, 0.45),
        step_row("fp8", 16, 4, 0.52, 0.45),
    ]
    alone, both = table(near), table([*distant, *near])
    assert both[: len(alone)] == alone
    title, _, points, _, choices, _, errors, _, good = both[len(alone) + 1 :]
    assert title == "2 hosts at 1gbit, round trip 50ms, steps of 2MiB:"
    assert isinstance(points, Table)
    assert [line[:3] for line in points.rows][1:3] == [("16", "4", "identity"), ("16", "16", "fp8")]
    assert [line[-1] for line in points.rows] == ["+2.0", "-1.0", "-10.0", "-13.5"]
    assert isinstance(choices, Table)
    assert [line[1] for line in choices.rows] == ["identity, 16 buckets, 4 lanes"] + [
        "fp8, 16 buckets, 4 lanes"
    ] * 2, "fewer lanes win ties"
    assert str(errors).startswith("Error of 4 predictions between distant hosts: median 10.0 %")
    assert str(good).startswith("1 of 3 choices")
