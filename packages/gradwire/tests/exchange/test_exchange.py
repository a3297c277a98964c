from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import codecs, collectives
from gradwire.codecs import Identity, parse
from gradwire.collectives.frame_order import segments
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, SpecError, TensorError
from gradwire.exchange import Exchange
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES
from support.sums import SEGMENT_COUNT, bits, shares

RunRanks = Callable[..., list[Any]]
SPECS = sorted(spec for row in codecs.TABLE for spec in row.codec.EXAMPLES)
ALGORITHMS = sorted(collectives.TABLE)
EACH_SPEC = pytest.mark.parametrize("spec", SPECS)
EACH_ALGORITHM = pytest.mark.parametrize("algorithm", ALGORITHMS)


def summed(run_ranks: RunRanks, xs: list[torch.Tensor], plan: Plan, times: int = 1) -> list[torch.Tensor]:
    """All-reduce ``xs``, ``times`` over with the same exchanges; return the last sums."""

    def rank(link: Link) -> torch.Tensor:
        exchange = Exchange(link, plan)
        for _ in range(times):
            tensor = xs[link.rank].clone()
            exchange.all_reduce(tensor, average=False)
        return tensor

    return run_ranks(len(xs), rank)


@pytest.mark.parametrize("world", range(1, 10))
@pytest.mark.parametrize("n", [0, 1, 5, 1000, 3 * 9 * SEGMENT_COUNT + 5])
def test_identity_on_the_ring_adds_each_chunk_in_its_documented_order(
    run_ranks: RunRanks, world: int, n: int
) -> None:
    xs = shares(world, n, scale=1e3)
    wanted = torch.empty(n)
    for chunk in range(world):
        part = slice(n * chunk // world, n * (chunk + 1) // world)
        total = xs[chunk][part].clone()
        for k in range(1, world):
            total += xs[(chunk + k) % world][part]
        wanted[part] = total
    for result in summed(run_ranks, xs, Plan(Identity(), "ring", SEGMENT_UNIT_NBYTES)):
        assert torch.equal(bits(result), bits(wanted))


@pytest.mark.parametrize("world", range(1, 10))
def test_identity_in_the_star_adds_in_the_order_of_the_ranks(run_ranks: RunRanks, world: int) -> None:
    xs = shares(world, 2 * SEGMENT_COUNT + 5, scale=1e3)
    wanted = xs[0].clone()
    for x in xs[1:]:
        wanted += x
    for result in summed(run_ranks, xs, Plan(Identity(), "star", SEGMENT_UNIT_NBYTES)):
        assert torch.equal(bits(result), bits(wanted))


@EACH_ALGORITHM
@pytest.mark.parametrize("world", [1, 3, 4])
def test_the_average_is_the_sum_divided(run_ranks: RunRanks, algorithm: str, world: int) -> None:
    xs = shares(world, 1000)
    plan = Plan(parse("errbound:2^-12"), algorithm, SEGMENT_UNIT_NBYTES)

    def average(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        Exchange(link, plan).all_reduce(tensor)
        return tensor

    total = summed(run_ranks, xs, plan)[0]
    for result in run_ranks(world, average):
        assert torch.equal(bits(result), bits(total / world))


@EACH_SPEC
def test_a_value_that_is_not_finite_is_not_finite_anywhere(run_ranks: RunRanks, spec: str) -> None:
    xs = shares(3, 50)
    xs[1][17] = math.nan
    xs[2][33] = math.inf
    results = summed(run_ranks, xs, Plan(parse(spec), "ring", SEGMENT_UNIT_NBYTES))
    for result in results:
        assert not result[17].isfinite()
        assert not result[33].isfinite()
        assert torch.equal(result.isfinite(), results[0].isfinite())


@EACH_SPEC
def test_an_exchange_used_again_gives_the_same_bits(run_ranks: RunRanks, spec: str) -> None:
    xs = shares(3, 5000)
    plan = Plan(parse(spec), "ring", SEGMENT_UNIT_NBYTES)
    once, thrice = summed(run_ranks, xs, plan), summed(run_ranks, xs, plan, times=3)
    assert torch.equal(bits(once[0]), bits(thrice[2]))


@EACH_ALGORITHM
def test_lengths_may_change_from_call_to_call(run_ranks: RunRanks, algorithm: str) -> None:
    lengths = [10, 0, 3 * SEGMENT_COUNT, 1, 10]

    def rank(link: Link) -> list[float]:
        exchange = Exchange(link, Plan(Identity(), algorithm, SEGMENT_UNIT_NBYTES))
        tensors = [torch.full((n,), float(link.rank)) for n in lengths]
        for tensor in tensors:
            exchange.all_reduce(tensor, average=False)
        return [tensor.sum().item() for tensor in tensors]

    assert run_ranks(4, rank) == [[6.0 * n for n in lengths]] * 4


@pytest.mark.parametrize("world", range(1, 7))
def test_reduce_in_the_star_leaves_the_sum_at_rank_0(run_ranks: RunRanks, world: int) -> None:
    xs = shares(world, 1000)

    def rank(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        Exchange(link, Plan(Identity(), "star")).reduce(tensor)
        return tensor

    at_root, *elsewhere = run_ranks(world, rank)
    wanted = xs[0].clone()
    for x in xs[1:]:
        wanted += x
    assert torch.equal(at_root, wanted)
    for x, left in zip(xs[1:], elsewhere, strict=True):
        assert torch.equal(x, left)


def test_reduce_on_the_ring_leaves_each_chunk_at_its_owner(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> torch.Tensor:
        tensor = torch.full((40,), float(10**link.rank))
        Exchange(link, Plan(Identity(), "ring")).reduce(tensor)
        return tensor

    for r, tensor in enumerate(run_ranks(4, rank)):
        owned = (r + 1) % 4
        assert (tensor[10 * owned : 10 * (owned + 1)] == 1111).all()


@pytest.mark.parametrize("spec", ["identity", "bf16", "quantize:8"])
def test_broadcast_has_a_codec_of_its_own_and_the_root_adopts_it(run_ranks: RunRanks, spec: str) -> None:
    (weights,) = shares(1, 2 * SEGMENT_COUNT + 9)
    codec = parse(spec)

    def rank(link: Link) -> torch.Tensor:
        exchange = Exchange(link, Plan(parse("errbound:2^-10"), "star", SEGMENT_UNIT_NBYTES))
        tensor = weights.clone() if link.rank == 0 else torch.zeros_like(weights)
        exchange.reduce(torch.ones(10))
        exchange.broadcast(tensor, codec)
        return tensor

    results = run_ranks(4, rank)
    wanted = torch.empty_like(weights)
    for segment in segments(weights.numel(), 1, 0, SEGMENT_COUNT):
        part = slice(segment.start, segment.stop)
        codec.decode(codec.encode(weights[part]), wanted[part])
    for result in results:
        assert torch.equal(bits(result), bits(wanted))


@EACH_ALGORITHM
def test_accounting_counts_what_is_sent(run_ranks: RunRanks, algorithm: str) -> None:
    world, n = 4, 4 * 2 * SEGMENT_COUNT

    def rank(link: Link) -> ExchangeCost:
        plan = Plan(Identity(), algorithm, SEGMENT_UNIT_NBYTES)
        return Exchange(link, plan).all_reduce(torch.ones(n))

    accountings = run_ranks(world, rank)
    assert max(a.raw_nbytes for a in accountings) == collectives.TABLE[algorithm].nbytes(world, 4 * n)
    for a in accountings:
        assert a.frames == a.raw_nbytes // SEGMENT_UNIT_NBYTES
        assert a.wire_nbytes == a.raw_nbytes + HEADER_NBYTES * a.frames
        assert 0 < a.encode_s + a.decode_s + a.wait_s <= a.total_s


@pytest.mark.parametrize("spec", ["errbound:2^-10", "fp16", "bfp:7x16"])
def test_a_codec_saves_bytes_on_every_hop(run_ranks: RunRanks, spec: str) -> None:
    xs = shares(3, 100_000, scale=1e-3)

    def rank(link: Link) -> ExchangeCost:
        return Exchange(link, Plan(parse(spec))).all_reduce(xs[link.rank].clone())

    for accounting in run_ranks(3, rank):
        assert accounting.ratio > 1.9


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.ones(4, dtype=torch.float64), id="dtype"),
        pytest.param(torch.ones(2, 2), id="shape"),
        pytest.param(torch.ones(8)[::2], id="layout"),
    ],
)
def test_a_wrong_tensor_is_refused_untouched_and_the_exchange_goes_on(
    run_ranks: RunRanks, tensor: torch.Tensor
) -> None:
    before = tensor.clone()

    def rank(link: Link) -> float:
        exchange = Exchange(link, Plan())
        with pytest.raises(TensorError, match=r"expected a 1-D contiguous .* for tensor"):
            exchange.all_reduce(tensor)
        right = torch.ones(4)
        exchange.all_reduce(right, average=False)
        return right.sum().item()

    assert run_ranks(2, rank) == [8.0, 8.0]
    assert torch.equal(tensor, before)


def test_a_tensor_that_requires_gradients_is_exchanged_all_the_same(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> float:
        tensor = torch.ones(4, requires_grad=True)
        Exchange(link, Plan()).all_reduce(tensor)
        return tensor.sum().item()

    assert run_ranks(2, rank) == [4.0, 4.0]


def test_ranks_with_different_lengths_both_learn_it(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> None:
        Exchange(link, Plan()).all_reduce(torch.ones(10 + link.rank))

    errors = run_ranks(2, rank, errors="return")
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert "elements, got" in str(errors[0]) + str(errors[1])


def test_ranks_with_different_codecs_learn_both_names(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> None:
        codec = parse("fp16" if link.rank else "bfp:7x16")
        Exchange(link, Plan(codec)).all_reduce(torch.ones(10))

    errors = run_ranks(2, rank, errors="return")
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert "the codec differs: expected bfp, got fp16" in str(errors[0]) + str(errors[1]) or (
        "the codec differs: expected fp16, got bfp" in str(errors[0]) + str(errors[1])
    )


@pytest.mark.parametrize("algorithm", sorted(collectives.TABLE))
def test_ranks_that_disagree_on_the_average_all_learn_it(run_ranks: RunRanks, algorithm: str) -> None:
    def rank(link: Link) -> None:
        Exchange(link, Plan(algorithm=algorithm)).all_reduce(torch.ones(100), average=link.rank != 1)

    errors = run_ranks(3, rank, timeout_s=2.0, errors="return")
    assert all(isinstance(error, ExchangeError) for error in errors)
    assert any("pass the same average" in str(error) for error in errors)


def test_after_a_failure_an_exchange_says_so() -> None:
    links = loopback(2, timeout_s=0.05)
    exchange = Exchange(links[0], Plan())
    with pytest.raises(ExchangeError, match=r"within 0\.05 s"):
        exchange.all_reduce(torch.ones(4))
    with pytest.raises(
        ExchangeError, match=r"this exchange can no longer be used .*within 0\.05 s.*; create a new exchange"
    ):
        exchange.all_reduce(torch.ones(4))


def test_a_second_thread_is_refused_and_does_not_disturb_the_first() -> None:
    ends = [Exchange(link, Plan()) for link in loopback(2, timeout_s=10.0)]
    tensors = [torch.full((1000,), float(rank)) for rank in range(2)]
    waiting = threading.Thread(target=ends[0].all_reduce, args=(tensors[0],))
    waiting.start()
    while not ends[0]._at_work.locked():
        pass
    with pytest.raises(ExchangeError, match="rank 0: another thread is using this exchange"):
        ends[0].all_reduce(torch.ones(1000))
    ends[1].all_reduce(tensors[1])
    waiting.join()
    assert all((tensor == 0.5).all() for tensor in tensors)


def test_an_exchange_follows_another_plan_between_two_calls(run_ranks: RunRanks) -> None:
    plans = [Plan.of("fp8"), Plan(algorithm="butterfly"), Plan.of("quantize:8", algorithm="tree"), Plan()]
    xs = shares(3, 5000, scale=1.0)

    def rank(link: Link) -> list[torch.Tensor]:
        exchange, found = Exchange(link, plans[0]), []
        for plan in plans:
            exchange.follow(plan)
            assert exchange.plan == plan
            tensor = xs[link.rank].clone()
            exchange.all_reduce(tensor, average=False)
            found.append(tensor)
        return found

    together = run_ranks(3, rank)
    for number, plan in enumerate(plans):
        for mine, alone in zip(together, summed(run_ranks, xs, plan), strict=True):
            assert torch.equal(bits(mine[number]), bits(alone))


def test_an_exchange_does_not_follow_a_plan_that_wants_other_connections() -> None:
    exchange = Exchange(loopback(1)[0], Plan.of("fp8"))
    with pytest.raises(
        SpecError, match=r"a plan with offload None, like this exchange's link, got inceptionn:2\^-10; create"
    ):
        exchange.follow(Plan(offload="inceptionn:2^-10"))
    assert exchange.plan == Plan.of("fp8")
