"""The same inputs give the same codec, algorithm, and lanes in plan, profile, and a run's own choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire import Auto, Plan, choose_plan, parse
from gradwire.autotune.contract import RelativeErrors, exchanged
from gradwire.autotune.costs import at_once
from gradwire.autotune.decide import decide
from gradwire.autotune.estimate import Deployment, Estimate, Estimator
from gradwire.autotune.settings import BUCKETS
from gradwire.planner.candidates import Workload, lanes_in
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from support.observations import NBYTES, observed

WAN = Line(0.025, 2.5e7)
"""A round trip of 50 ms, and 200 Mbit/s."""
HOST = HostCost(send_s=2e-5, receive_s=2e-5, cores=8)
COSTS = {
    spec: CodecCost(spec, (CodecPoint(1, nbytes, 2e-10, 2e-10, 2e-10, lost=lost),), exact=spec == "identity")
    for spec, (nbytes, lost) in NBYTES.items()
}
CODECS = ("identity", "fp8")


def estimated(workload: Workload, threads: int = 1, kind: str = "DDP") -> tuple[Estimator, Estimate]:
    compute_s, backward_s = workload.compute_s, workload.backward_s
    seen = observed(kind=kind, world=2, threads=threads, counts=workload.counts, line=WAN)
    seen = replace(seen, compute_s=compute_s, backward_s=backward_s)
    estimator = Estimator(seen, HOST, COSTS, 2.0, Auto(codecs=CODECS))
    return estimator, estimator.at(Deployment("wan", WAN, 2))


@pytest.mark.parametrize(("buckets", "backward_s", "lanes"), [(16, 0.1, 16), (24, 0.3, 8)])
def test_plan_profile_and_a_run_choose_the_same_lanes(buckets: int, backward_s: float, lanes: int) -> None:
    workload = Workload((1 << 18,) * buckets, forward_s=0.05, backward_s=backward_s)
    measured, estimate = estimated(workload)

    lost = {
        algorithm: RelativeErrors(
            {"weight": workload.count},
            {parse(spec): {"weight": exchanged(algorithm, 2, *[NBYTES[spec][1]] * 2)} for spec in CODECS},
            {parse(spec): NBYTES[spec][0] for spec in CODECS},
            Auto().max_lost_norm,
        )
        for algorithm in BUCKETS.algorithms
    }
    place, present = Environment(WAN, COSTS, HOST), Plan.of("fp8", residual=False)
    decision = at_once(decide(place, workload, 2, lost, present, None, lanes_in(place)))[0]

    chosen = choose_plan(
        workload.counts,
        2,
        line=WAN,
        forward_s=workload.forward_s,
        backward_s=backward_s,
        codecs=CODECS,
        costs=COSTS,
        host=HOST,
    )
    assert chosen.prediction.buckets == buckets, "a bucket for each parameter, as in the others"

    for plan in (estimate.plan, decision.plan, chosen.plan):
        assert (str(plan.codec), plan.algorithm, plan.lanes) == ("fp8", "ring", lanes)
    assert estimate.step_s == pytest.approx(decision.step_s, rel=0.02)
    assert estimate.step_s == pytest.approx(chosen.prediction.step_s, rel=0.02)
    one_s = measured.step_s(Deployment("wan", WAN, 2), replace(estimate.plan, lanes=1))
    assert one_s > 1.5 * estimate.step_s, "lanes pay"


def test_an_estimate_of_fsdp_has_one_lane() -> None:
    workload = Workload((1 << 18,) * 16, forward_s=0.15)
    assert estimated(workload, kind="FSDP2")[1].plan.lanes == 1


def test_codecs_that_use_all_cores_gain_less_from_lanes() -> None:
    """With 8 threads for a codec, lanes encode one after the other on the host's 8 cores."""
    workload = Workload((1 << 18,) * 16, forward_s=0.05, backward_s=0.1)
    place, plan = Deployment("wan", WAN, 2), Plan.of("fp8", residual=False, lanes=16)
    one, all_cores = (estimated(workload, threads)[0].step_s(place, plan) for threads in (1, 8))
    assert one < all_cores
