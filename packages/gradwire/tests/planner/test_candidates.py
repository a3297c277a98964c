from __future__ import annotations

import pytest
import torch

from gradwire.codecs import FREE_OF_SCALE, Codec, Identity, parse
from gradwire.errors import SpecError
from gradwire.plan import Plan
from gradwire.planner.candidates import SEGMENTS_NBYTES, Space, Workload, candidates, coded


def space(*specs: str, **more: object) -> Space:
    return Space(tuple(map(parse, specs)), **more)  # type: ignore[arg-type]


def test_identity_always_comes_first() -> None:
    assert space("bf16", "identity", "bf16").codecs == (Identity(), parse("bf16"))
    assert space().codecs == (Identity(),)


def test_every_part_of_a_plan_is_varied() -> None:
    plans = list(candidates(space("bf16", pipelines=(1, 2)), Workload.of_count(30_000_000, 0, 1.0), 4))
    assert len(plans) == len(set(plans))
    assert {str(plan.codec) for plan in plans} == {"identity", "bf16"}
    exact = {plan.algorithm for plan in plans if isinstance(plan.codec, Identity)}
    assert exact == {"backend", "ring", "pairwise", "butterfly", "tree", "star"}
    assert {plan.algorithm for plan in plans if str(plan.codec) == "bf16"} == exact - {"backend"}
    assert {plan.segment_nbytes for plan in plans} == set(SEGMENTS_NBYTES)
    assert {plan.bucket_nbytes for plan in plans if plan.pipeline == 1} > {None, 1 << 22}
    assert {plan.bucket_nbytes for plan in plans if plan.pipeline == 2} == {None}


def test_segments_stop_at_the_first_that_holds_a_chunk() -> None:
    plans = candidates(space(algorithms=("ring",)), Workload.of_count(4 * 65_536), 4)
    assert [plan.segment_nbytes for plan in plans] == [1 << 18]


def test_without_backward_there_is_one_bucket() -> None:
    plans = candidates(space(), Workload.of_count(30_000_000), 4)
    assert {plan.bucket_nbytes for plan in plans} == {None}


def test_buckets_that_are_given_are_the_only_ones() -> None:
    given = space(algorithms=("ring",), buckets_nbytes=(4,), whole=False)
    plans = list(candidates(given, Workload((1000,) * 100), 4))
    assert {plan.bucket_nbytes for plan in plans} == {4}
    assert len(Workload((1000,) * 100).parts(4)) == 100


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"algorithms": ()}, "one or more algorithms"),
        ({"algorithms": ("gossip",)}, "unknown algorithm 'gossip'"),
        ({"pipelines": (0,)}, "from 1 to 1024 for pipeline, got 0"),
        ({"codecs": ("bf16",)}, "expected a Codec for codec"),
        ({"segments_nbytes": (5,)}, "for segment_nbytes, got 5"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Space(**{"codecs": ()} | more)  # type: ignore[arg-type]


def test_the_default_codecs_keep_a_finite_bound_on_any_gradient() -> None:
    for spec in FREE_OF_SCALE:
        codec: Codec = parse(spec)
        for scale in (1e-20, 1.0, 1e20):
            gradient = scale * torch.tensor([0.3, -1.0, 0.001, 1e-9])
            assert codec.bound(gradient) <= 0.1 * scale


def test_a_sharded_exchange_is_offered_around_a_ring() -> None:
    asked = space("bf16", pipelines=(1, 2), exchanges=("all_reduce", "sharded"))
    plans = [each for each in candidates(asked, Workload.of_count(30_000_000, 0, 1.0), 4) if each.is_sharded]
    assert {str(each.codec) for each in plans} == {"identity", "bf16"}
    assert {(each.algorithm, each.pipeline, each.bucket_nbytes) for each in plans} == {("ring", 1, None)}
    assert not any(each.is_sharded for each in candidates(space("bf16"), Workload.of_count(10), 4))


@pytest.mark.parametrize(
    "plan",
    [
        Plan(parse("errbound:2^-8"), scale="auto"),
        Plan(offload="truncate:16"),
        Plan(offload="inceptionn:2^-10", scale="auto"),
        Plan(parse("quantize:8")),
    ],
    ids=str,
)
def test_an_encoding_says_which_plan_has_it(plan: Plan) -> None:
    assert Plan(**coded(plan.encoding)).encoding == plan.encoding
    (found,) = {
        each.encoding
        for each in candidates(Space((plan.encoding,)), Workload.of_count(1000), 2)
        if not isinstance(each.encoding, Identity)
    }
    assert found == plan.encoding
