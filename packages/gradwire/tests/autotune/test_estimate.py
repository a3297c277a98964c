from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gradwire import Plan
from gradwire.autotune.estimate import Deployment, Estimate, Limit
from gradwire.errors import SpecError
from gradwire.timing.line import HostCost, Line
from support.observations import FAST, estimator, observed

SLOW = Line(5e-5, 12.5e6)


def test_both_sides_of_a_gain_come_from_one_model() -> None:
    """What the model is off for the observed step makes a gain uncertain, and never larger."""
    here = Deployment("this one", FAST, 4, is_here=True)
    found = estimator(observed()).at(here)
    assert found.kind == "DDP"
    assert found.plain_s == estimator(observed()).at(Deployment("another", FAST, 4)).plain_s
    slower = observed(exposed_s=0.1)  # other work took the cores while the script was watched
    noisy = estimator(slower).at(here)
    assert noisy.speedup == pytest.approx(found.speedup)
    assert noisy.spread == pytest.approx(1 - noisy.plain_s / 0.13)
    assert noisy.is_noisy


def test_steps_that_scatter_make_a_gain_uncertain() -> None:
    where = Deployment("100mbit", SLOW, 4)
    even = observed()
    exact = observed(exposed_s=estimator(even).at(Deployment("", FAST, 4)).plain_s - even.compute_s)
    assert estimator(exact).at(where).spread == pytest.approx(0, abs=1e-9)
    for scatter, is_noisy in ((0.1, False), (0.2, True)):
        found = estimator(replace(exact, scatter=scatter)).at(where)
        assert found.spread == pytest.approx(scatter)
        assert found.is_noisy is is_noisy
        assert ("too noisy to report" in str(found)) is is_noisy
    assert estimator(observed(line=None, scatter=0.05)).at(where).spread == 0.05
    assert estimator(observed(attached="fp8", scatter=0.05)).at(where).spread == 0.05


def test_a_slow_line_is_what_limits_and_a_codec_of_few_bytes_gains() -> None:
    found = estimator(observed()).at(Deployment("100mbit", SLOW, 4))
    ring_s = 2 * 3 / 4 * (1 << 24) / 12.5e6  # what a ring of four sends of 16 MiB, at this rate
    assert found.plain_s == pytest.approx(ring_s + 0.03, rel=0.1)
    assert str(found.plan.codec) == "fp8", "quantize:4 loses more than the contract allows"
    assert found.step_s == pytest.approx(0.255 * ring_s + 0.03, rel=0.15)
    assert found.plan.bucket_nbytes is None
    assert found.limit.name == "line"
    assert 1 < found.speedup_to_loss < found.speedup
    assert found.to_loss_s > found.step_s


def test_on_a_fast_line_computation_limits_and_nothing_is_compressed() -> None:
    found = estimator(observed()).at(Deployment("unlimited", Line(0.0, float("inf")), 2))
    assert found.plan.codec.EXACT
    assert found.limit.name == "computation"
    assert found.to_loss_s == found.step_s


def test_slow_codecs_are_a_matter_of_the_cpu() -> None:
    measured = estimator(observed(), seconds=5e-8)
    assert measured.at(Deployment("100mbit", SLOW, 4)).limit.name == "CPU"


def test_ranks_that_share_cores_take_longer() -> None:
    measured = estimator(observed(), HostCost(cores=2), seconds=2e-9)
    apart, together = (measured.at(Deployment("1gbit", Line(5e-5, 1.25e8), 4, each)) for each in (1, 4))
    assert together.step_s > apart.step_s


def test_hidden_work_on_busy_cores_makes_a_step_longer() -> None:
    """An exchange that backward half hides from a slow line still takes its cores meanwhile."""
    plan, slow = Plan.of("fp8", residual=False), Line(5e-5, 1.25e7)
    found = {}
    for cores in (2, 64):
        measured = estimator(observed(compute_s=0.3, backward_s=0.25), HostCost(cores=cores), seconds=2e-9)
        found[cores] = measured.step_s(Deployment("100mbit", slow, 4, 4), plan)
    work_s = (
        4 * 2e-9 * (1 << 22) * 10 / 4 / 2
    )  # ten passes over a quarter of the values on each of four ranks
    assert 0.3 * work_s < found[2] - found[64] < 1.2 * work_s


def test_the_time_of_a_plan_of_the_user_is_that_of_the_choice_where_they_agree() -> None:
    measured, place = estimator(observed()), Deployment("100mbit", SLOW, 4)
    found = measured.at(place)
    assert measured.step_s(place, found.plan) == pytest.approx(found.step_s)
    assert measured.step_s(place, Plan()) > found.step_s


def test_fsdp_scatters_while_backward_waits_and_gathers_weights() -> None:
    sharded = observed(kind="FSDP2", backward_s=0.0)
    place = Deployment("100mbit", SLOW, 4)
    half_s = 3 / 4 * (1 << 24) / 12.5e6
    without, found = (
        estimator(each).at(place) for each in (sharded, observed(kind="FSDP2", gathers=(1 << 21,) * 4))
    )
    assert without.plain_s == pytest.approx(half_s + 0.03, rel=0.1)
    assert found.plain_s - without.plain_s == pytest.approx(2 * half_s, rel=0.15)
    assert found.step_s - without.step_s == pytest.approx(2 * half_s, rel=0.15)
    assert found.plan.algorithm == "ring"


def test_an_estimate_travels_as_json_and_tells_itself() -> None:
    found = estimator(observed()).at(Deployment("100mbit", SLOW, 4))
    assert Estimate.from_json(json.dumps(found.values())) == found
    assert str(found).startswith("4 hosts, network 100mbit: fp8 over ")
    assert found.values()["speedup"] == found.plain_s / found.step_s
    for text in ("", "[]", "{}", '{"plan": {}}'):
        with pytest.raises(SpecError):
            Estimate.from_json(text)


@pytest.mark.parametrize("hosts", [1, 0, 257, 2.0, True])
def test_a_place_has_a_number_of_hosts(hosts: int) -> None:
    with pytest.raises(SpecError, match="expected 2 to 256 hosts for an estimate"):
        Deployment("", FAST, hosts)


def test_a_limit_is_a_name_and_a_share() -> None:
    assert str(Limit("line", 0.624)) == "line 62 %"
