from __future__ import annotations

from gradwire.planner.surroundings import among, cores
from gradwire.timing.costs import CodecCost, CodecPoint, Environment, HostCost
from gradwire.timing.line import Line

SLOW, FAST = Line(0.0, 1e6), Line(0.0, 1e9)
COST = CodecCost("c", (CodecPoint(1, 1.0, 0, 0, 0), CodecPoint(4, 3.0, 0, 0, 0)), 1e-5)


def test_groups_and_lines_go_on_as_they_begin() -> None:
    found = among(Environment(SLOW, {}, lines=(SLOW, FAST), groups=(2, 2)), 5)
    assert found.lines == (SLOW, FAST, SLOW, FAST, SLOW)
    assert found.groups == (2, 2, 1)
    assert among(Environment(SLOW, {}, groups=(3, 1)), 4).groups == (3, 1)


def test_a_shared_machine_is_shared_by_all() -> None:
    shared = among(Environment(SLOW, {}, HostCost(cores=4, ranks_per_machine=2)), 8)
    assert shared.host.ranks_per_machine == 8
    assert cores(8, shared) == 4
    alone = among(Environment(SLOW, {}, HostCost(cores=4)), 8)
    assert alone.host.ranks_per_machine == 1
    assert cores(8, alone) == 32


def test_costs_stay_what_they_are() -> None:
    found = among(Environment(SLOW, {"c": COST}), 6).codecs["c"]
    assert [found.at(terms) for terms in (1, 2, 3, 4)] == [COST.at(terms) for terms in (1, 2, 3, 4)]
    assert found.at(6).nbytes == 3.0
    assert found.call_s == COST.call_s
