"""The experiment on software NICs: its networks, plans, ratios, and table."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from gradwire import Plan, parse
from gradwire.errors import GradwireError
from gradwire.tables import Table, lines
from gradwire.timing.line import Line
from gradwire_lab.experiments import software_nic
from gradwire_lab.experiments.software_nic import LIBRARY, MERGED, SINGLE, SoftwareNicOptions, behind_nics


def words(**changed: Any) -> argparse.Namespace:
    usual = {"hosts": 4, "rates": "25mbit", "mtus": "1400", "codec": "inceptionn:2^-10"}
    return argparse.Namespace(**(usual | {"unscaled": False, "data_dir": None} | changed))


def test_each_rate_and_mtu_has_the_library_and_both_kinds_of_nics() -> None:
    cells = software_nic.cells(SoftwareNicOptions(2, ("25mbit", "1gbit"), (1400, 9000), "truncate:16", None))
    assert [(cell["rate"], cell["mtu"], cell["way"], cell["nic"]) for cell in cells] == [
        (rate, mtu, way, nic)
        for rate in ("25mbit", "1gbit")
        for mtu in (1400, 9000)
        for way, nic in (
            (LIBRARY, ""),
            (MERGED, "truncate:16"),
            (SINGLE, "truncate:16 --no-merge"),
        )
    ]
    library, nics, single = map(software_nic.plan_of, cells[:3])
    assert (library.codec, library.offload) == (parse("truncate:16"), None)
    assert nics == single == Plan(offload="truncate:16", segment_nbytes=library.segment_nbytes)


def test_options_are_read() -> None:
    options = software_nic.EXPERIMENT.read(words(rates="1gbit,25mbit,1gbit", mtus="9000,1400", unscaled=True))
    assert options == SoftwareNicOptions(4, ("1gbit", "25mbit"), (9000, 1400), scale=None)
    assert software_nic.EXPERIMENT.read(words()).scale == "auto"


@pytest.mark.parametrize("changed", [{"codec": "fp8"}, {"mtus": "large"}, {"rates": "fast"}, {"hosts": 1}])
def test_a_mistake_is_one_sentence(changed: dict[str, Any]) -> None:
    with pytest.raises(GradwireError) as caught:
        software_nic.EXPERIMENT.read(words(**changed))
    assert "\n" not in str(caught.value)


def test_the_ratio_is_that_of_all_hops_of_a_ring() -> None:
    ones, zeros = torch.ones(50_000), torch.zeros(50_000)
    assert software_nic.ring_ratio(Plan(parse("truncate:16")), [ones] * 3) == 2
    assert software_nic.ring_ratio(Plan(offload="truncate:16"), [ones] * 3) == 2
    plan = Plan(offload="inceptionn:2^-10")
    first, others = (parse("inceptionn:2^-10").encode(x).numel() / (4 * len(x)) for x in (zeros, ones))
    ratio = software_nic.ring_ratio(plan, [zeros, zeros, ones, zeros])  # hops of 1, 2, 3, and 4 terms
    assert ratio == pytest.approx(6 / (2 * first + 4 * others))


def row(mtu: int, way: str, measured_s: float, predicted_s: float) -> dict[str, Any]:
    cell = {
        "hosts": 4,
        "rate": "25mbit",
        "mtu": mtu,
        "way": way,
        "codec": "inceptionn:2^-10",
        "scale": "auto",
    }
    times = {"fastest_s": measured_s, "slowest_s": measured_s, "predicted_s": predicted_s}
    return {**cell, "measured_s": measured_s, **times, "ratio": 2.2}


def test_its_table_compares_with_the_library_and_rates_predictions() -> None:
    rows = [row(1400, LIBRARY, 1.0, 1.04), row(1400, MERGED, 0.8, 0.9), row(9000, LIBRARY, 0.9, 0.9)]
    title, _, table, _, note, _, verdict = software_nic.table(rows)
    assert title == "steps of an MLP on 4 hosts with inceptionn:2^-10, scaled"
    assert isinstance(table, Table)
    assert [line[-2:] for line in table.rows] == [("+4.0", "1.00x"), ("+12.5", "1.25x"), ("+0.0", "1.00x")]
    assert verdict == "2 of 3 predictions are within 5 % of the measured time."
    assert "same rate and MTU" in str(note)
    assert max(map(len, lines(table))) <= 100


def test_behind_nics_a_line_carries_more_floats_but_not_as_many_more_as_the_codec_says() -> None:
    line = Line(1e-3, 12e6, 3000.0, 0.9)
    found = behind_nics(line, 4.6, 1400, merge=False)
    assert found.time_s(0) == line.time_s(0)
    assert found.nbytes_per_s / line.nbytes_per_s == pytest.approx(3.85, abs=0.01)
    assert found.burst_nbytes / line.burst_nbytes == pytest.approx(3.85, abs=0.01)
    assert found.duplex_share == line.duplex_share
