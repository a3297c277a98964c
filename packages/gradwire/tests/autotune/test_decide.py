from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gradwire import Plan
from gradwire.autotune.contract import RelativeErrors, exchanged
from gradwire.autotune.costs import at_once
from gradwire.autotune.decide import _rivals, decide
from gradwire.autotune.decision import Decision
from gradwire.codecs import Identity, parse
from gradwire.planner.candidates import Workload
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import Line

WORLD = 4
BUCKETS = Workload((1 << 20,) * 4, forward_s=0.01, backward_s=0.02)
NBYTES = {"identity": 4.0, "bf16": 2.0, "fp8": 1.02, "quantize:4": 0.5}
LOST = {"identity": 0.0, "bf16": 0.002, "fp8": 0.026, "quantize:4": 0.12}
COUNTS = {"weight": 999, "other": 979, "scale": 20, "bias": 2}


def environment(rate: float) -> Environment:
    costs = {
        spec: CodecCost(spec, (CodecPoint(1, nbytes, 2e-10, 2e-10, 2e-10),), exact=spec == "identity")
        for spec, nbytes in NBYTES.items()
    }
    return Environment(Line(5e-5, rate), costs)


def decided(*given: Any) -> tuple[Decision, ...]:
    return at_once(decide(*given))


def of_exchange(world: int, share: float) -> float:
    return exchanged("ring", world, share, share)


def lost(
    shares: dict[str, float], world: int = WORLD, most: float = 0.2, **others: dict[str, float]
) -> dict[str, RelativeErrors]:
    """What exchanges lose over a ring where an encoding loses these shares, and others of some parameters."""
    every = {
        parse(spec): {name: of_exchange(world, others.get(name, {}).get(spec, share)) for name in COUNTS}
        for spec, share in shares.items()
    }
    nbytes = {parse(spec): each for spec, each in NBYTES.items()}
    return {"ring": RelativeErrors(COUNTS, every, nbytes, most)}


def chosen(
    rate: float, most: float = 0.2, present: str = "fp8", world: int = WORLD, **others: dict[str, float]
) -> Decision:
    now = Plan.of(present, residual=False)
    return decided(environment(rate), BUCKETS, world, lost(LOST, world, most, **others), now)[0]


def test_a_fast_line_wants_no_compression() -> None:
    decision = chosen(1e12, present="identity")
    assert decision.plan.codec == Identity()
    assert decision.step_s == decision.uncompressed_s == pytest.approx(decision.compute_s, rel=0.1)


def test_distant_ranks_exchange_several_buckets_at_once() -> None:
    workload = Workload((1 << 18,) * 16, forward_s=0.01, backward_s=0.02)
    place = replace(environment(2.5e7), line=Line(0.025, 2.5e7))
    how = place, workload, 2, lost(LOST, 2), Plan.of("fp8", residual=False), None
    best, *rivals = decided(*how, (1, 2, 4, 8, 16))
    assert best.plan.lanes > 1
    assert "lanes" in best.in_short
    one = decided(*how)[0]
    assert one.plan.lanes == 1
    assert best.step_s < 0.5 * one.step_s
    assert all(each.plan != best.plan for each in rivals)


def test_a_slow_line_wants_the_codec_whose_bytes_outweigh_its_noise() -> None:
    decision = chosen(1e7)
    assert str(decision.plan.codec) == "quantize:4"
    assert decision.plan.bucket_nbytes is None
    assert not decision.plan.keeps_residual
    assert decision.uncompressed_s > 5 * decision.step_s
    assert "quantize:4 over ring" in decision.reason


def test_what_loses_more_than_the_contract_allows_is_left_out_and_named() -> None:
    decision = chosen(1e7, most=0.1)
    assert str(decision.plan.codec) == "fp8"
    assert "quantize:4 would exceed a relative error of 10% for too many values" in decision.reason
    assert chosen(1e7, most=1e-4).plan.codec == Identity()


@pytest.mark.parametrize(("share", "codec"), [(0.02, "quantize:4"), (0.2, "fp8")])
def test_noise_counts_against_a_codec_where_its_bytes_save_little(share: float, codec: str) -> None:
    shares = lost(LOST | {"quantize:4": share}, 16, 0.9)
    decision = decided(environment(3e8), BUCKETS, 16, shares, Plan.of("bf16"))[0]
    assert str(decision.plan.codec) == codec


def test_few_parameters_that_a_codec_does_not_suit_get_another_one() -> None:
    decision = chosen(1e7, bias={"quantize:4": 0.5, "fp8": 0.4})
    assert str(decision.plan.codec) == "quantize:4"
    assert [str(decision.plan.encoding_of(name)) for name in COUNTS] == ["quantize:4"] * 3 + ["identity"]
    said = "1 parameter (bias) with identity, since quantize:4 would exceed a relative error of 20%"
    assert said in decision.reason
    plain = chosen(1e7)
    assert not plain.plan.codecs
    assert plain.step_s < decision.step_s < 1.05 * plain.step_s
    assert Decision.from_json(decision.to_json()) == decision
    larger = chosen(1e7, scale={"quantize:4": 0.5, "fp8": 0.4})
    assert str(larger.plan.encoding_of("scale")) == "bf16", "in four bytes these would be 8 % of all"


def test_many_values_that_a_codec_does_not_suit_get_the_one_of_fewest_bytes_or_count_against_it() -> None:
    some = chosen(1e7, other={"quantize:4": 0.5})
    assert str(some.plan.encoding_of("other")) == "fp8"
    assert str(some.plan.encoding_of("weight")) == "quantize:4"
    most = chosen(1e7, other={"quantize:4": 0.5}, weight={"quantize:4": 0.5})
    assert (str(most.plan.codec), most.plan.codecs) == ("fp8", ())
    assert "quantize:4 would exceed a relative error of 20% for too many values" in most.reason


@pytest.mark.parametrize(("name", "counts"), [("scale", False), ("other", True)])
def test_a_codec_that_did_not_suit_more_than_a_tenth_counts_as_left_out_unless_it_is_the_plans(
    name: str, counts: bool
) -> None:
    of_one: dict[str, Any] = {name: {"quantize:4": 0.5}}
    shares, plans = lost(LOST, WORLD, **of_one), set()
    for rate in (1e7, 1e8, 1e9):
        tried = decided(environment(rate), BUCKETS, WORLD, shares, Plan.of("fp8", residual=False))
        for each in tried:
            plans.add(str(each.plan.codec))
            own = str(each.plan.codec) == "quantize:4"
            assert each.left_out == (("quantize:4",) if counts and not own else ())
            assert "quantize:4 would lose" not in each.reason.replace("since quantize:4 would lose", "")
    assert len(plans) > 1
    assert "quantize:4" in plans


def test_each_parameter_gets_the_codec_of_fewest_bytes_that_suits_it() -> None:
    rough = {"quantize:4": 0.5}
    mixed = chosen(1e7, other=rough, scale=rough | {"fp8": 0.4})
    assert [str(mixed.plan.encoding_of(name)) for name in COUNTS] == [
        "quantize:4",
        "fp8",
        "bf16",
        "quantize:4",
    ]
    assert "(other) with fp8 and 1 parameter (scale) with bf16, since quantize:4" in mixed.reason
    assert chosen(1e7, other=rough).step_s < mixed.step_s < chosen(1e7, other=rough | {"fp8": 0.4}).step_s


@pytest.mark.parametrize(("longer", "codec"), [(0.04, "quantize:4"), (0.06, "fp8")])
def test_of_plans_that_take_as_long_the_one_with_the_fewest_bytes_is_chosen(
    longer: float, codec: str
) -> None:
    def of(shares: dict[str, float]) -> Decision:
        return decided(environment(3e8), BUCKETS, WORLD, lost(shares, most=0.9), Plan.of("bf16"))[0]

    alone = {spec: of({"identity": 0.0, spec: 0.0}).step_s for spec in ("fp8", "quantize:4")}
    # The noise with which quantize:4 takes longer than fp8 by this share, and what an encoding then loses.
    noise = (1 + longer) * alone["fp8"] / alone["quantize:4"] - 1
    shares = {"identity": 0.0, "fp8": 0.0, "quantize:4": math.sqrt(noise) / of_exchange(WORLD, 1.0)}
    assert str(of(shares).plan.codec) == codec


def test_a_plan_of_far_fewer_bytes_is_tried_although_it_is_expected_to_take_longer() -> None:
    def of(noise: float) -> list[str]:
        shares = {"identity": 0.0, "fp8": 0.0, "quantize:4": math.sqrt(noise) / of_exchange(WORLD, 1.0)}
        found = decided(environment(3e8), BUCKETS, WORLD, lost(shares, most=0.9), Plan.of("bf16"))
        return list(dict.fromkeys(str(each.plan.codec) for each in found))

    assert of(0.2) == ["fp8", "quantize:4"]
    assert of(0.9) == ["fp8"], "and not if it is expected to take more than 1.5 times as long"


def option(
    codec: str, algorithm: str, step_s: float, nbytes: float, segment_nbytes: int = 1 << 20
) -> Decision:
    plan = Plan.of(codec, algorithm=algorithm, segment_nbytes=segment_nbytes, residual=False)
    return Decision(plan, step_s, 1.0, 0.0, "", nbytes=nbytes)


def tried(
    best: Decision, options: list[Decision], worth: list[Decision], world: int = WORLD
) -> list[Decision]:
    return _rivals(best, options, worth, world)


def test_what_sends_far_less_takes_the_place_of_another_codec_and_not_of_no_compression() -> None:
    options = [
        option("fp8", "ring", 0.100, 4e6),
        option("fp8", "pairwise", 0.103, 4e6),
        option("identity", "ring", 0.104, 16e6),
        option("quantize:4", "ring", 0.106, 2e6),
        option("ecsq:0.5", "ring", 0.149, 1.9e6),
        option("ecsq:1", "ring", 0.151, 1e6),
    ]
    best, pairwise, exact, quick, slow, _ = options
    rivals = tried(best, options, options)
    assert rivals == [pairwise, exact, quick], "the fastest of those that send far less"
    rivals = tried(best, options, [best, slow])
    assert rivals == [exact, quick, slow], "of those that are worth their noise, and one of another name"
    assert tried(best, options[:3], options) == [pairwise, exact]


def test_a_codec_of_another_name_is_tried_before_other_ways_of_the_same() -> None:
    options = [
        option("ecsq:0.25,foot", "pairwise", 0.100, 2.2e6),
        option("ecsq:0.25,foot", "butterfly", 0.101, 2.2e6),
        option("ecsq:0.25", "ring", 0.102, 2.0e6),
        option("bfp:7x16", "tree", 0.120, 4e6),
        option("fp8", "tree", 0.121, 4e6),
    ]
    best, butterfly, ring, light, _ = options
    assert tried(best, options, options) == [butterfly, ring, light]
    leaner = option("ecsq:0.5", "pairwise", 0.13, 1.5e6)
    assert tried(best, [*options, leaner], [leaner]) == [butterfly, light, leaner]
    assert tried(best, options[:3], options) == [butterfly, ring]
    assert tried(best, options[:1], options) == []
    exact = option("identity", "ring", 0.104, 16e6)
    rivals = tried(best, [*options, exact], options)
    assert rivals == [butterfly, exact, light], "which is no codec of another name"
    other = option("identity", "tree", 0.103, 16e6)
    assert tried(exact, [*options, exact, other], []) == [best, butterfly, ring], "one of them is enough"
    star = option("ecsq:0.25", "star", 0.103, 2e6)
    far = option("fp8", "tree", 0.126, 4e6)
    rivals = tried(best, [best, butterfly, ring, star, far], options)
    assert rivals == [butterfly, ring, star], "another codec has to be closer"


def test_the_best_plan_is_tried_in_other_segments_too() -> None:
    options = [
        option("fp8", "ring", 0.100, 4e6, 1 << 18),
        option("fp8", "ring", 0.110, 4e6, 1 << 20),
        option("fp8", "pairwise", 0.111, 4e6, 1 << 18),
        option("fp8", "ring", 0.112, 4e6, 1 << 22),
        option("fp8", "butterfly", 0.113, 4e6),
        option("fp8", "tree", 0.114, 4e6),
    ]
    best, resized, pairwise, _, butterfly, _ = options
    assert tried(best, options, options) == [resized, pairwise, butterfly], "one beside the others"
    far = [best, option("fp8", "ring", 0.126, 4e6), pairwise]
    assert tried(best, far, options) == [pairwise], "and not if it is expected to take far longer"


def test_of_plans_that_exchange_the_same_frames_one_is_tried() -> None:
    options = [
        option("fp8", "ring", 0.100, 4e6),
        option("fp8", "pairwise", 0.100, 4e6),
        option("fp8", "tree", 0.105, 4e6),
        option("bf16", "ring", 0.110, 8e6),
        option("bf16", "pairwise", 0.110, 8e6),
    ]
    best, pairwise, tree, other, _ = options
    assert tried(best, options, options, world=2) == [tree, other]
    assert tried(best, options, options) == [pairwise, tree, other], "four ranks exchange others"

    same = dict.fromkeys(("ring", "pairwise", "butterfly"), lost(LOST, world=2)["ring"])
    found = decided(environment(1e8), BUCKETS, 2, same, Plan.of("bf16"))
    frames = {(each.plan.codec, each.plan.segment_nbytes) for each in found}
    assert len(frames) == len(found) > 1, "with two ranks, the three are the same"


def test_a_codec_whose_exceptions_cost_what_it_saves_is_not_chosen() -> None:
    """At this rate its bytes save a little, but not if every second value takes four of them."""
    rate, other = 3e9, {"quantize:4": 0.5, "fp8": 0.4, "bf16": 0.4}
    assert str(chosen(rate, present="identity").plan.codec) == "fp8"
    assert chosen(rate, present="identity", other=other).plan.codec == Identity()
    assert chosen(1e9, present="identity", other=other).plan.codecs


def test_the_present_plan_stays_unless_another_is_clearly_better() -> None:
    for rate in (1e7, 1e8, 1e9, 1e12):
        decision = chosen(rate)
        again = chosen(rate, present=str(decision.plan.codec))
        assert again.plan.codec == decision.plan.codec


def test_a_codec_that_saves_nothing_any_more_does_not_stay() -> None:
    assert chosen(1e12, present="fp8").plan.codec == Identity()
