from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gradwire.errors import SpecError
from gradwire.machine import TOPOLOGY, cores
from gradwire.planner.cluster import ASSUMED_LATENCY_S, Cluster
from gradwire.timing.line import HostCost, Line, LineRate, Point

POINTS = [Point(1, 2e-4, 1e3, 1e3), Point(1 << 22, 0.04, 1.1e8, 1.1e8)]


@pytest.fixture(autouse=True)
def no_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPOLOGY, raising=False)


def test_the_line_is_told() -> None:
    line, inputs = Cluster(4, rate="1gbit", latency="20us").find_line()
    assert line.latency_s == pytest.approx(2e-5)
    assert line.nbytes_per_s == 1.25e8
    assert [each.source for each in inputs] == ["told", "told"]
    line, inputs = Cluster(4, rate=5e7).find_line()
    assert line == Line(ASSUMED_LATENCY_S, 5e7)
    assert inputs[-1].source == "assumed"
    assert Cluster(4, rate="unlimited", latency=0.0).find_line()[0] == Line(0.0, math.inf)


def test_the_line_is_measured(tmp_path: Path) -> None:
    rate = LineRate.of(POINTS)
    path = tmp_path / "line.json"
    path.write_text(rate.to_json())
    for given in (path, str(path), rate):
        line, inputs = Cluster(4, given).find_line()
        assert line == rate.line
        assert inputs[0].source.startswith("measured")
    assert Cluster(4, rate.line).find_line()[1][0].source == "told"


def test_a_line_of_another_machine_wants_a_word(tmp_path: Path) -> None:
    values = json.loads(LineRate.of(POINTS).to_json()) | {"machine_id": "0" * 16}
    path = tmp_path / "line.json"
    path.write_text(json.dumps(values))
    with pytest.raises(SpecError, match="measured on another machine"):
        Cluster(4, path).find_line()
    assert Cluster(4, path, elsewhere=True).find_line()[1][0].source.startswith("measured elsewhere")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"hosts": 0}, "from 2 up"),
        ({"hosts": 1}, "nothing to exchange"),
        ({"hosts": 2.5}, "from 2 up"),
        ({"hosts": 4, "group_size": 4, "core_rate": 1e8}, "groups have from 2 hosts up to 3"),
        ({"hosts": 2, "group_size": 2, "core_rate": 1e8}, "2 hosts make no groups"),
        ({"hosts": 4, "group_size": 2, "core_rate": 0}, "core_rate must be a rate above 0"),
        ({"hosts": 4, "group_size": 2, "core_rate": math.nan}, "core_rate must be a rate above 0"),
        ({"hosts": 4, "group_size": 2, "core_rate": [1]}, "core_rate must be a rate above 0"),
        ({"hosts": 4, "group_size": 2}, "groups need both"),
        ({"hosts": 4, "core_rate": 1e8}, "groups need both"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Cluster(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "needs to know the line"),
        ({"latency": "5us"}, "needs to know the line"),
        ({"rate": "fast"}, "a rate is written like"),
        ({"rate": 0.0}, "nbytes_per_s must be a number above 0"),
        ({"rate": "1gbit", "latency": "5"}, "a time is written like"),
        ({"line": Line(0.0, 1.0), "rate": "1gbit"}, "either measured or told"),
        ({"line": "missing.json"}, "missing.json cannot be read"),
        ({"line": 3}, "line must be a Line, a LineRate or the file of one, but is 3"),
    ],
)
def test_a_line_that_is_not_told_is_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Cluster(4, **values).find_line()  # type: ignore[arg-type]


def test_hosts_have_their_own_cores_unless_they_share_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = HostCost(send_s=1e-4, cores=cores())
    assert Cluster(64, host=cost).threads == cores()
    assert Cluster(64, host=cost).find_host()[0].ranks_per_machine == 1
    shared = Cluster(64, host=cost, shared_machine=True)
    assert shared.threads == max(1, cores() // 64)
    assert shared.find_host()[0].ranks_per_machine == 64
    monkeypatch.setenv(TOPOLOGY, "{}")
    assert Cluster(64, host=cost).find_host()[0].ranks_per_machine == 64
    assert Cluster(64, host=cost, shared_machine=False).find_host()[0].ranks_per_machine == 1


def test_groups_are_of_neighbours_and_the_last_may_be_smaller() -> None:
    cluster = Cluster(10, group_size=4, core_rate="1gbit")
    assert cluster.groups == (4, 4, 2)
    assert cluster.core_nbytes_per_s == 1.25e8
    assert Cluster(10).groups == ()
