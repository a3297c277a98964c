"""The environment of a request: what is measured, what is told, and how inputs say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.errors import SpecError
from gradwire.machine import TOPOLOGY, cores
from gradwire.planner.calibration import threads_of, use_threads
from gradwire.planner.environment import Input, inputs_of, is_shared, measure, resolve
from gradwire.planner.request import PlanRequest
from gradwire.timing.environment import Environment
from gradwire.timing.line import HostCost, LineRate, Point
from support.planner_costs import codec_cost

Make = Callable[..., Environment]
POINTS = [Point(1, 2e-4, 1e3, 1e3), Point(1 << 22, 0.04, 1.1e8, 1.1e8)]
HOST = HostCost(send_s=1e-4, cores=cores())
COSTS = {"identity": codec_cost("identity", 4.0)}


@pytest.fixture(autouse=True)
def no_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPOLOGY, raising=False)


def ask(hosts: int = 4, **values: object) -> PlanRequest:
    return PlanRequest.of(1000, hosts, **{"codecs": (), "costs": COSTS, "host": HOST} | values)


def told(request: PlanRequest) -> dict[str, Input]:
    return {each.name: each for each in inputs_of(request, request, measure(request))}


def test_a_line_that_is_told_says_so() -> None:
    found = told(ask(rate="1gbit", latency="20us"))
    assert [found[name].source for name in ("rate", "latency")] == ["given", "given"]
    assert told(ask(rate=5e7))["latency"].source == "assumed"


def test_a_measured_line_says_where_it_is_from(tmp_path: Path) -> None:
    rate = LineRate.of(POINTS)
    path = tmp_path / "line.json"
    path.write_text(rate.to_json())
    for given in (path, str(path), rate):
        assert measure(ask(line=given)).line == rate.line
        assert told(ask(line=given))["line"].source.startswith("measured")
    assert told(ask(line=rate.line))["line"].source == "given"


def test_a_line_of_another_machine_wants_a_word(tmp_path: Path) -> None:
    values = json.loads(LineRate.of(POINTS).to_json()) | {"machine_id": "0" * 16}
    path = tmp_path / "line.json"
    path.write_text(json.dumps(values))
    with pytest.raises(SpecError, match="measured on another machine"):
        resolve(ask(line=path))
    assert told(ask(line=path, elsewhere=True))["line"].source.startswith("measured elsewhere")


def test_a_file_that_is_missing_shows_when_it_is_resolved() -> None:
    with pytest.raises(SpecError, match=r"missing.json cannot be read"):
        resolve(ask(line="missing.json"))


def test_frames_cost_what_was_measured_with_the_line() -> None:
    measured = LineRate.of(POINTS, HostCost(send_s=1e-3, cores=2))
    found = measure(ask(line=measured, host=None))
    assert (found.host.send_s, found.host.cores) == (1e-3, 2)
    assert told(ask(line=measured, host=None))["frames"].source == "measured"
    assert told(ask(line=measured))["frames"].source == "given"


def test_hosts_have_their_own_cores_unless_they_share_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {shared: ask(64, rate="1gbit", shared_machine=shared) for shared in (None, True, False)}
    assert threads_of(64, shared=is_shared(None)) == cores()
    assert measure(asked[None]).host.ranks_per_machine == 1
    assert threads_of(64, shared=is_shared(True)) == max(1, cores() // 64)
    assert measure(asked[True]).host.ranks_per_machine == 64
    monkeypatch.setenv(TOPOLOGY, "{}")
    assert measure(asked[None]).host.ranks_per_machine == 64
    assert measure(asked[False]).host.ranks_per_machine == 1


def test_a_launched_rank_has_the_threads_that_its_launcher_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0"}.items():
        monkeypatch.setenv(name, value)
    with use_threads(1):
        assert threads_of(2, shared=False) == threads_of(2, shared=True) == 1
    with use_threads(3):
        assert threads_of(2, shared=False) == 3


def test_groups_are_of_neighbours_and_the_last_may_be_smaller() -> None:
    found = measure(
        ask(
            10,
            rate="10gbit",
            group_size=4,
            core_rate="1gbit",
            algorithms=["ring"],
        )
    )
    assert found.groups == (4, 4, 2)
    assert found.core_nbytes_per_s == 1.25e8
    assert measure(ask(10, rate="10gbit")).groups == ()


def test_gradients_are_read_before_anything_is_measured() -> None:
    with pytest.raises(SpecError, match=r"got the file g\.pt; pass the request to"):
        measure(ask(rate="1gbit", gradients=Path("g.pt")))


def test_a_resolved_request_is_as_it_was_but_for_its_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_nets.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(3, 2)\n")
    request = ask(rate="1gbit")
    assert resolve(request) is request
    found = resolve(PlanRequest.of("some_nets:net", 4, rate="1gbit", backward_s=0.1))
    assert found == PlanRequest.of((6, 2), 4, rate="1gbit", backward_s=0.1)
