from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.autotune.contract import (
    Contract,
    RelativeErrors,
    beyond,
    draw,
    excepted,
    exchanged,
    in_words,
    rules_for,
    suits,
)
from gradwire.autotune.samples import Samples, Shadow
from gradwire.codecs import Codec, Identity, parse
from gradwire.timing.calibrate import lost_share
from support.ranks import run_ranks

Q4, Q8, BF16 = parse("quantize:4"), parse("quantize:8"), parse("bf16")
ECSQ = parse("ecsq:0.5,sum=0.125")
COUNTS = {"a.weight": 900, "a+b": 99, "bias": 1}
LOST = RelativeErrors(
    COUNTS,
    {
        Identity(): dict.fromkeys(COUNTS, 0.0),
        Q4: {"a.weight": 0.1, "a+b": 0.3, "bias": 0.9},
        Q8: {"a.weight": 0.01, "a+b": 0.19, "bias": 0.5},
        BF16: dict.fromkeys(COUNTS, 0.002),
    },
    {Identity(): 4.0, Q4: 0.5, Q8: 1.0, BF16: 2.0},
    0.2,
)


@pytest.mark.parametrize("codec", [Q4, ECSQ], ids=str)
@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "butterfly", "star"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_an_exchange_of_unlike_gradients_loses_what_its_encodings_do(
    world: int, algorithm: str, codec: Codec
) -> None:
    def run(link: Link) -> torch.Tensor:
        tensor = torch.randn(1 << 16, generator=torch.Generator().manual_seed(link.rank))
        plan = Plan(codec, algorithm=algorithm, residual=False)
        Exchange(link, plan).all_reduce(tensor, average=False)
        return tensor

    xs = [torch.randn(1 << 16, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]
    once = {each: lost_share(each, xs[0]) for each in (codec, codec.of_sums)}
    exact = torch.stack(xs).double().sum(0)
    whole = float((run_ranks(world, run)[0] - exact).norm() / exact.norm())
    assert whole == pytest.approx(exchanged(algorithm, world, once[codec], once[codec.of_sums]), rel=0.2)


def test_what_partial_sums_lose_adds_up_in_a_ring_and_not_pairwise() -> None:
    """In a ring 1 to 3 of 4 gradients are encoded: 6/4 of the sum's square. Pairwise 3 times one: 3/4."""
    assert exchanged("ring", 4, 0.1, 0.05) == pytest.approx(math.sqrt(1.5 * 0.01 + 0.0025))
    assert exchanged("pairwise", 4, 0.1, 0.05) == pytest.approx(math.sqrt(0.75 * 0.01 + 0.0025))
    assert exchanged("ring", 9, 0.1, 0.1) == pytest.approx(0.1 * math.sqrt((9 + 1) / 2))


def test_a_parameter_goes_back_later_than_it_came() -> None:
    shares = {"a": 0.21, "b": 0.19, "c": 0.14}
    assert beyond(shares, 0.2, ()) == {"a"}
    assert beyond(shares, 0.2, {"b", "c"}) == {"a", "b"}
    present = Plan(Q4, codecs=rules_for({"a+b": Q8}))
    near = RelativeErrors(COUNTS, {Q4: {"a.weight": 0.1, "a+b": 0.19, "bias": 0.19}}, {Q4: 0.5}, 0.2)
    assert near.exceptions(Q4, present) == {"a+b"}
    assert near.exceptions(Q4, Plan(Q8, codecs=present.codecs)) == frozenset()


def test_rules_are_for_these_names_alone() -> None:
    others = {"a+b": BF16, "bias": Q8, "a.b": BF16}
    plan = Plan(Q4, codecs=rules_for(others))
    names = [*COUNTS, "a.b", "aab", "bias.bias", "xbias", "axb"]
    assert excepted(plan, names) == others.keys()
    assert {name: plan.encoding_of(name) for name in others} == others
    assert len(plan.codecs) == 2
    assert rules_for({}) == ()


def test_a_decision_says_which_parameters_have_which_codec() -> None:
    assert in_words(Q4, {"bias": BF16, "a+b": BF16}, 0.25) == (
        "2 parameters (a+b, bias) with bf16, since quantize:4 would exceed a relative error of 25%"
    )
    assert in_words(Q4, {"bias": BF16, "a+b": Q8}, 0.25) == (
        "1 parameter (a+b) with quantize:8 and 1 parameter (bias) with bf16, "
        "since quantize:4 would exceed a relative error of 25%"
    )
    assert in_words(Q4, {}, 0.25) == ""
    assert "(a+b, b, c, ...)" in in_words(Q4, dict.fromkeys(["a+b", "b", "c", "d"], BF16), 0.25)


def test_a_codec_that_does_not_suit_most_values_is_left_out() -> None:
    assert LOST.admitted(Plan()) == {
        Identity(): frozenset(),
        Q4: {"a+b", "bias"},
        Q8: {"bias"},
        BF16: frozenset(),
    }
    few = replace(LOST, most_excepted=0.05)
    assert set(few.admitted(Plan())) == {Identity(), Q8, BF16}
    assert set(replace(LOST, most=0.05).admitted(Plan())) == {Identity(), Q8, BF16}


def test_a_codec_that_only_some_parameters_get_is_involved_in_a_decision() -> None:
    shares = {Identity(): dict.fromkeys(COUNTS, 0.0), Q4: {"a.weight": 0.1, "a+b": 0.3, "bias": 0.1}}
    shares[Q8] = {"a.weight": 0.3, "a+b": 0.1, "bias": 0.1}  # suits few values, but those that Q4 doesn't
    lost = RelativeErrors(COUNTS, shares, {Identity(): 4.0, Q4: 0.5, Q8: 1.0}, 0.2)
    assert set(lost.admitted(Plan())) == {Identity(), Q4}
    assert lost.gentler(Q4, {"a+b"}) == {"a+b": Q8}
    assert lost.involved(Plan()) == (Identity(), Q4, Q8)


def test_the_others_get_what_takes_the_fewest_bytes_within_the_contract() -> None:
    assert LOST.gentler(Q4, {"a+b"}) == {"a+b": Q8}
    assert LOST.gentler(Q4, {"a+b"}, {Q8}) == {"a+b": BF16}
    assert replace(LOST, most=0.9).gentler(Q4, {"a+b"}) == {"a+b": Q8}, "another one in any case"
    assert LOST.gentler(Q4, {"bias"}) == {"bias": Identity()}, "one value in a thousand hardly counts"
    assert replace(LOST, most=0.001).gentler(Q4, {"a+b"}) == {"a+b": Identity()}
    assert LOST.gentler(Q4, set()) == {}


def test_each_gets_its_own_codec_where_that_saves_bytes_and_all_share_one_where_it_does_not() -> None:
    counts = {"large": 800, "middle": 150, "small": 46, "tiny": 4}
    fit = {"middle": {Q8, BF16}, "small": {BF16}, "tiny": {Q8, BF16}}
    shares = {
        codec: {name: 0.1 if codec in fit.get(name, {codec}) else 0.3 for name in counts}
        for codec in (Q4, Q8, BF16)
    } | {Identity(): dict.fromkeys(counts, 0.0)}
    lost = RelativeErrors(counts, shares, LOST.nbytes, 0.2)
    assert lost.gentler(Q4, {"middle", "small"}) == {"middle": Q8, "small": BF16}
    assert lost.gentler(Q4, {"small", "tiny"}) == {"small": BF16, "tiny": BF16}
    assert lost.gentler(Q4, {"middle", "small", "tiny"}) == {"middle": Q8, "tiny": Q8, "small": BF16}
    assert lost.gentler(Q4, {"middle", "small"}, {Q8}) == {"middle": BF16, "small": BF16}


def test_what_suits_no_codec_does_not_let_the_others_have_one_each() -> None:
    near = parse("quantize:8,block=64")
    counts = {"large": 399, "a": 300, "b": 300, "tiny": 1}
    fit = {"a": {Q8, near}, "b": {near}, "tiny": set[Codec]()}
    shares = {
        codec: {name: 0.1 if codec in fit.get(name, {codec}) else 0.3 for name in counts}
        for codec in (Q4, Q8, near)
    } | {Identity(): dict.fromkeys(counts, 0.0)}
    lost = RelativeErrors(counts, shares, {Identity(): 4.0, Q4: 0.5, Q8: 1.0, near: 1.01}, 0.2)
    assert lost.gentler(Q4, {"a", "b"}) == {"a": near, "b": near}
    assert lost.gentler(Q4, {"a", "b", "tiny"}) == {"a": near, "b": near, "tiny": Identity()}


def test_all_ranks_draw_the_same_bucket_and_each_its_turn() -> None:
    drawn = [draw(step, 4) for step in range(0, 4000, 20)]
    assert drawn == [draw(step, 4) for step in range(0, 4000, 20)]
    assert {*drawn} == {0, 1, 2, 3}
    assert draw(5, 0) is None


def samples(bias: float, shadow: Shadow | None = None) -> Samples:
    """A step in which the values of a bias are as large as the weights, times ``bias``."""
    found = Samples(shadow=shadow)
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    values[900:] *= bias
    found.store(found.expect([(900,), (100,)], ["weight", "bias"]), values)
    return found


BIAS = frozenset({"bias"})
PRESENT = Plan(Q4, residual=False)
EXCEPTED = Plan(Q4, residual=False, codecs=rules_for({"bias": BF16}))


def judged(
    found: list[Samples], present: Plan = PRESENT, contract: Contract | None = None
) -> frozenset[str] | None:
    contract = contract or Contract(0.3, len(found))
    return contract.judge([contract.row(each, present) for each in found], found[0], present)


def test_the_rank_that_loses_most_counts() -> None:
    assert judged([samples(1.0), samples(1.0)]) is None
    assert judged([samples(1.0), samples(1e-3)]) == BIAS
    assert judged([samples(1e-3), samples(1.0)], EXCEPTED) is None, "it has another one"
    assert judged([samples(1.0), samples(1.0)], EXCEPTED) == frozenset()


def test_a_step_that_is_not_finite_on_one_rank_judges_nothing() -> None:
    assert judged([samples(1e-3), samples(math.nan)]) is None
    contract = Contract(0.3, 2)
    assert len(contract.row(samples(math.nan), PRESENT)) == len(contract.row(samples(1.0), PRESENT))
    assert contract.row(None, PRESENT) == []


def test_what_a_whole_exchange_lost_counts_until_the_bucket_is_drawn_again() -> None:
    contract = Contract(0.3, 2)
    bad = Shadow({"bias": 0.4}, {"bias": 0.4})
    assert judged([samples(1.0, bad), samples(1.0, bad)], PRESENT, contract) == BIAS
    assert judged([samples(1.0), samples(1.0)], EXCEPTED, contract) is None, (
        "not drawn, so nothing new is known"
    )
    better = Shadow({"bias": 0.01}, {"bias": 0.1})
    assert judged([samples(1.0, better)] * 2, EXCEPTED, contract) == frozenset()


def test_a_codec_that_is_too_rough_for_the_exceptions_is_refused_until_another_plan() -> None:
    contract = Contract(0.3, 2)
    rough = Shadow({"bias": 0.4}, {"bias": 0.9})
    assert judged([samples(1e-3, rough)] * 2, EXCEPTED, contract) == BIAS
    assert contract.refused == {BF16}
    both = Plan(Q4, residual=False, codecs=rules_for({"bias": BF16, "weight": Q8}))
    fine = Contract(0.3, 2)
    assert judged([samples(1e-3, Shadow({"weight": 0.4, "bias": 0.1}, {"weight": 0.9}))] * 2, both, fine)
    assert fine.refused == {Q8}, "that of the parameter which lost too much"
    contract.begin()
    assert (contract.refused, contract.seen) == (set(), {})


@pytest.mark.parametrize(
    ("algorithm", "world", "suited"),
    [
        ("pairwise", 2, True),
        ("pairwise", 7, True),
        ("ring", 2, True),
        ("ring", 4, False),
        ("butterfly", 4, False),
        ("star", 5, True),
    ],
)
def test_a_step_for_sums_is_for_algorithms_that_encode_each_gradient_by_itself(
    algorithm: str, world: int, suited: bool
) -> None:
    assert suits(parse("ecsq:0.5,sum=0.25"), algorithm, world) == suited
    assert suits(parse("ecsq:0.25"), algorithm, world)
