from __future__ import annotations

from collections.abc import Callable

import pytest

from gradwire.planner.exchange_times import REPLAYED_WORLD, BucketPlan, Family
from gradwire.timing.environment import Environment
from gradwire.timing.line import HostCost
from gradwire.timing.replay import replay

Make = Callable[..., Environment]


@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "butterfly", "tree", "star"])
def test_a_short_bucket_takes_what_its_replay_takes(environment: Make, algorithm: str) -> None:
    place = environment()
    terms = Family(place).among(4).terms(BucketPlan(algorithm, 1 << 20, "bf16"), 500_000)
    found = replay(algorithm, 4, 500_000, 1 << 20, "bf16", place)
    assert terms.total_s == pytest.approx(found.total_s)
    assert terms.encode_s == found.last.encode_s
    assert terms.wire_nbytes == max(rank.wire_nbytes for rank in found.ranks)


@pytest.mark.parametrize("rate", [125e6, 1.25e9])
@pytest.mark.parametrize("algorithm", ["ring", "butterfly", "star"])
def test_a_long_bucket_takes_about_what_its_replay_takes(
    environment: Make, algorithm: str, rate: float
) -> None:
    place, count = environment(rate), 30_000_000
    plan = BucketPlan(algorithm, 1 << 18, "identity")
    found = replay(algorithm, 4, count, plan.segment_nbytes, "identity", place)
    terms = Family(place).among(4).terms(plan, count)
    assert terms.total_s == pytest.approx(found.total_s, rel=0.03)
    assert terms.wire_nbytes == pytest.approx(max(rank.wire_nbytes for rank in found.ranks), rel=0.01)
    assert terms.encode_s == pytest.approx(found.last.encode_s, rel=0.05)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical:4"])
def test_many_ranks_take_about_what_their_replay_takes(environment: Make, algorithm: str) -> None:
    place, count, world = environment(), 10_000_000, REPLAYED_WORLD + 4
    plan = BucketPlan(algorithm, 1 << 20, "identity")
    found = replay(algorithm, world, count, plan.segment_nbytes, "identity", place)
    assert Family(place).among(world).terms(plan, count).total_s == pytest.approx(found.total_s, rel=0.05)


@pytest.mark.parametrize("count", [1, 7, 1_000, 700_001, 3_000_000])
def test_between_round_numbers_little_is_lost(environment: Make, count: int) -> None:
    times = Family(environment()).among(3)
    plan = BucketPlan("ring", 1 << 20, "bf16")
    assert times.between(plan, count).total_s == pytest.approx(times.terms(plan, count).total_s, rel=0.05)


@pytest.mark.parametrize("world", [2, 5, 24, 256])
def test_nothing_is_below_its_bound_and_the_terms_add_up(environment: Make, world: int) -> None:
    times = Family(environment(host=HostCost(send_s=1e-4, receive_s=1e-4, cores=2, ranks_per_machine=2)))
    for algorithm in ("ring", "star"):
        plan = BucketPlan(algorithm, 1 << 20, "quantize:8")
        terms, bound = times.among(world).terms(plan, 200_000), times.among(world).least(plan, 200_000)
        assert terms.total_s >= bound.total_s * (1 - 1e-12)
        assert terms.total_s == terms.encode_s + terms.decode_s + terms.handling_s + terms.wait_s
        assert min(terms.encode_s, terms.decode_s, terms.handling_s, terms.wait_s) >= 0


def test_a_shared_uplink_slows_the_flat_ring_more_than_the_hierarchy(environment: Make) -> None:
    place = environment(1.25e9, groups=(4, 4), core_nbytes_per_s=1.25e8)
    times = Family(place).among(8)
    star, hierarchy = (
        times.terms(BucketPlan(each, 1 << 20, "identity"), 2_000_000).total_s
        for each in ("star", "hierarchical:4,star+star")
    )
    assert hierarchy < star
