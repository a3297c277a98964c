from __future__ import annotations

import pytest

from gradwire.codecs import parse
from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.planner.exchange_times import Family, among, cores, with_residuals
from gradwire.planner.predict import Predictor
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line

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


def test_residuals_cost_another_decoding_and_seven_passes_for_every_value() -> None:
    codecs = {
        "identity": CodecCost("identity", (CodecPoint(1, 4.0, 9.0, 2.0, 9.0),)),
        "c": CodecCost("c", (CodecPoint(1, 1.0, 5.0, 7.0, 11.0), CodecPoint(4, 3.0, 6.0, 8.0, 12.0))),
    }
    environment = Environment(SLOW, codecs)
    found = with_residuals(environment, "c")
    assert [point.encode_s for point in found.codecs["c"].points] == [5 + 7 + 7 * 2, 6 + 8 + 7 * 2]
    assert [point.decode_add_s for point in found.codecs["c"].points] == [11, 12]
    assert found.codecs["identity"] == codecs["identity"]
    assert environment.codecs["c"] == codecs["c"]


def test_a_plan_with_residuals_takes_longer() -> None:
    cost = CodecCost("quantize:4", (CodecPoint(1, 0.5, 1e-9, 1e-9, 1e-9),))
    predictor = Predictor(Workload.of_count(1_000_000), 4, Family(Environment(FAST, {"quantize:4": cost})))
    with_it, without = (
        predictor.predict(Plan(parse("quantize:4"), residual=residual)) for residual in (None, False)
    )
    # every rank encodes a quarter of the values four times: its own partial sums, and its chunk
    assert with_it.cost.encode_s - without.cost.encode_s == pytest.approx(1_000_000 * 1e-9, rel=0.01)
    assert with_it.step_s > without.step_s
