"""Buckets with several codecs: every parameter is exchanged with its own, as if it were a bucket of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import Exchange, Plan
from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, TensorError
from gradwire.exchange import Norms
from gradwire.exchange.feedback import Residual
from gradwire.exchange.request import BucketRequest, Half
from gradwire.exchange.views import ParameterViews
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES
from support.bucket_requests import request_of
from support.faulty_link import Fault, FaultyLink
from support.mixed import exact_mean, is_bf16_mean
from support.summing import Summing
from support.sums import bits

RunRanks = Callable[..., list[Any]]
COUNTS = (700, 3, 0, 5000, 1, 40)
NAMES = ("a.weight", "a.bias", "nothing.bias", "b.weight", "b.bias", "c.weight")
BIASES_EXACT = Plan(
    parse("bf16"), segment_nbytes=SEGMENT_UNIT_NBYTES, codecs=[{"match": "bias", "codec": "identity"}]
)


def gradients(world: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(world)
    return [torch.randn(sum(COUNTS), generator=generator) for _ in range(world)]


def by_parameter(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(zip(NAMES, torch.split(tensor, [*COUNTS]), strict=True))


def test_two_ranks_get_what_each_codec_makes_of_its_own_parameters(run_ranks: RunRanks) -> None:
    xs = gradients(2)

    def run(link: Link) -> torch.Tensor:
        tensor = xs[link.rank].clone()
        exchange = Exchange(link, BIASES_EXACT)
        exchange.run(tensor, request_of(exchange, NAMES, COUNTS))
        return tensor

    results = run_ranks(2, run)
    assert torch.equal(bits(results[0]), bits(results[1]))
    found, own = by_parameter(results[0]), [by_parameter(x) for x in xs]
    for name in NAMES:
        if "bias" in name:
            assert torch.equal(found[name], exact_mean(own[0][name], own[1][name]))
        else:
            assert is_bf16_mean(found[name], own[0][name], own[1][name])
    assert not torch.equal(found["b.weight"], exact_mean(own[0]["b.weight"], own[1]["b.weight"]))


@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize("average", [True, False])
def test_it_is_what_exchanges_of_the_codecs_parameters_alone_give(
    world: int, average: bool, run_ranks: RunRanks
) -> None:
    xs, plan = gradients(world), Plan(parse("fp8"), "tree", codecs=[{"match": "bias", "codec": "bf16"}])

    def run(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
        tensor = xs[link.rank].clone()
        exchange = Exchange(link, plan)
        exchange.run(tensor, request_of(exchange, NAMES, COUNTS, average=average))
        parts = by_parameter(xs[link.rank])
        alone: dict[str, torch.Tensor] = {}
        for ending, spec in (("weight", "fp8"), ("bias", "bf16")):
            names = [name for name in NAMES if name.endswith(ending)]
            values = torch.cat([parts[name] for name in names])
            Exchange(link, Plan(parse(spec), "tree")).all_reduce(values, average)
            alone |= dict(
                zip(names, torch.split(values, [parts[name].numel() for name in names]), strict=True)
            )
        return tensor, torch.cat([alone[name] for name in NAMES])

    for tensor, alone in run_ranks(world, run):
        assert torch.equal(bits(tensor), bits(alone))


def test_residuals_hold_what_each_codec_lost(run_ranks: RunRanks) -> None:
    xs = gradients(3)
    plan = Plan(parse("quantize:4"), residual=True, codecs=[{"match": "bias", "codec": "identity"}])

    def run(link: Link) -> tuple[torch.Tensor, torch.Tensor, int]:
        tensor, residual = xs[link.rank].clone(), torch.full_like(xs[link.rank], 0.25)
        exchange = Exchange(link, plan)
        request = request_of(exchange, NAMES, COUNTS, average=False, residual=residual)
        cost = exchange.run(tensor, request)
        return tensor, residual, cost.nonfinite

    results = run_ranks(3, run)
    total = torch.stack([results[0][0], *(residual for _, residual, _ in results)]).double().sum(0)
    exact = torch.stack(xs).double().sum(0) + 0.75
    np.testing.assert_allclose(total.numpy(), exact.numpy(), atol=1e-5)
    for tensor, residual, nonfinite in results:
        assert torch.equal(tensor, results[0][0])
        assert by_parameter(residual)["a.bias"].abs().max() == 0
        assert by_parameter(residual)["b.weight"].abs().max() > 0
        assert nonfinite == 0


def test_norms_are_those_of_each_parameter(run_ranks: RunRanks) -> None:
    xs = gradients(2)

    def run(link: Link) -> tuple[list[float], list[float]]:
        norms = Norms([0, *np.cumsum(COUNTS).tolist()])
        exchange = Exchange(link, BIASES_EXACT)
        for _ in range(2):  # the second time, norms begin anew
            exchange.run(xs[link.rank].clone(), request_of(exchange, NAMES, COUNTS, norms=norms))
        return norms.own.tolist(), norms.lost.tolist()

    for rank, (own, lost) in enumerate(run_ranks(2, run)):
        squares = [float(x.double().square().sum()) for x in by_parameter(xs[rank]).values()]
        assert own == pytest.approx(squares)
        assert [each > 0 for each in lost] == ["weight" in name for name in NAMES]


def test_nan_in_two_parts_is_one_bucket_that_is_not_finite(run_ranks: RunRanks) -> None:
    def run(link: Link) -> tuple[int, torch.Tensor]:
        tensor = torch.full((sum(COUNTS),), float("nan"))
        exchange = Exchange(link, BIASES_EXACT)
        return exchange.run(tensor, request_of(exchange, NAMES, COUNTS)).nonfinite, tensor

    for nonfinite, tensor in run_ranks(2, run):
        assert nonfinite == 1
        assert tensor.isnan().all()


def test_a_plan_with_one_codec_has_nothing_to_divide(run_ranks: RunRanks) -> None:
    def run(link: Link) -> bool:
        exchange = Exchange(link, Plan(parse("fp8")))
        return request_of(exchange, NAMES, COUNTS).views is None

    assert run_ranks(1, run) == [True]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("spec", ["ecsq:0.25", "ecsq:0.25,block=64"])
def test_a_bias_begins_a_block_of_its_own_and_keeps_its_values(
    spec: str, world: int, run_ranks: RunRanks
) -> None:
    names, counts, plan = ("w", "bias", "v"), (30_000, 70, 30_000), Plan(parse(spec), "pairwise")

    def gradient(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        scales = (1.0, 1e-3, 1.0)
        return torch.cat(
            [scale * torch.randn(n, generator=generator) for n, scale in zip(counts, scales, strict=True)]
        )

    def run(link: Link) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
        placed, mixed = gradient(link.rank), gradient(link.rank)
        norms = Norms([0, *np.cumsum(counts).tolist()])
        exchange = Exchange(link, plan)
        exchange.run(placed, request_of(exchange, names, counts, norms=norms))
        exchange.all_reduce(mixed)
        return placed, mixed, norms.own.tolist()

    exact = torch.stack([gradient(rank) for rank in range(world)]).mean(0)

    def lost(found: torch.Tensor) -> float:
        own, bias = exact[30_000:30_070], found[30_000:30_070]
        return float((bias - own).norm() / own.norm())

    results = run_ranks(world, run)
    for rank, (placed, mixed, own) in enumerate(results):
        assert torch.equal(bits(placed), bits(results[0][0]))
        parts = torch.split(gradient(rank), list(counts))
        if world > 1:
            assert lost(placed) < 0.2 < 0.4 < lost(mixed)
            assert own == pytest.approx([float(part.double().square().sum()) for part in parts], rel=1e-6)


def test_where_a_residual_is_kept_parameters_lie_as_in_the_bucket(run_ranks: RunRanks) -> None:
    def run(link: Link) -> bool:
        exchange = Exchange(link, Plan(parse("ecsq:0.5"), residual=True))
        return request_of(exchange, NAMES, COUNTS).views is None

    assert run_ranks(1, run) == [True]


def test_zeros_are_no_floats_that_were_to_be_sent(run_ranks: RunRanks) -> None:
    names, counts = ("w", "bias"), (30_000, 70)

    def run(link: Link) -> tuple[float, float]:
        tensor = torch.randn(sum(counts), generator=torch.Generator().manual_seed(link.rank))
        sent = []
        for spec in ("ecsq:0.25", "bf16"):
            exchange = Exchange(link, Plan(parse(spec)))
            cost = exchange.run(tensor.clone(), request_of(exchange, names, counts))
            sent.append(cost.raw_nbytes)
        return sent[0], sent[1]

    for with_zeros, without in run_ranks(3, run):
        assert with_zeros == pytest.approx(without, rel=0.02)  # chunks differ by some values


MIXED = [parse("bf16"), parse("identity"), parse("fp8"), parse("bf16"), parse("identity"), parse("ecsq:0.5")]


def call(exchange: Exchange, half: Half, tensor: torch.Tensor) -> ExchangeCost:
    """Call the method of a half."""
    calls: dict[Half, Callable[[torch.Tensor], ExchangeCost]] = {
        Half.ALL_REDUCE: exchange.all_reduce,
        Half.REDUCE: exchange.reduce,
        Half.BROADCAST: exchange.broadcast,
    }
    return calls[half](tensor)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("half", Half)
@pytest.mark.parametrize("algorithm", ["ring", "star", "tree"])
def test_a_request_for_a_half_gives_the_bits_of_its_call_for_each_codec(
    algorithm: str, half: Half, world: int, run_ranks: RunRanks
) -> None:
    xs, codecs = gradients(world), MIXED

    def run(link: Link) -> tuple[torch.Tensor, torch.Tensor, float, float]:
        views = ParameterViews(COUNTS, tuple(codecs))
        whole, alone = xs[link.rank].clone(), xs[link.rank].clone()
        exchange = Exchange(link, Plan(parse("fp8"), algorithm, SEGMENT_UNIT_NBYTES))
        cost = exchange.run(whole, BucketRequest(half, views=views))
        parts, nbytes = torch.split(alone, [*COUNTS]), 0.0
        for codec in dict.fromkeys(codecs):
            own = [part for part, each in zip(parts, codecs, strict=True) if each == codec]
            values = torch.cat(own)
            thin = Exchange(link, Plan(codec, algorithm, SEGMENT_UNIT_NBYTES))
            nbytes += call(thin, half, values).raw_nbytes
            for part, found in zip(own, torch.split(values, [each.numel() for each in own]), strict=True):
                part.copy_(found)
        return whole, alone, cost.raw_nbytes, nbytes

    for whole, alone, together_nbytes, apart_nbytes in run_ranks(world, run):
        assert torch.equal(bits(whole), bits(alone))
        assert together_nbytes == pytest.approx(apart_nbytes, rel=1e-12)


@pytest.mark.parametrize("half", Half)
def test_a_request_without_views_is_the_call_of_its_half(half: Half, run_ranks: RunRanks) -> None:
    xs = gradients(3)

    def run(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
        exchange = Exchange(link, Plan(parse("quantize:8"), "star"))
        first, second = (xs[link.rank].clone() for _ in range(2))
        exchange.run(first, BucketRequest(half))
        call(exchange, half, second)
        return first, second

    for first, second in run_ranks(3, run):
        assert torch.equal(bits(first), bits(second))


def test_views_without_parameters_exchange_nothing(run_ranks: RunRanks) -> None:
    def run(link: Link) -> tuple[float, int]:
        exchange = Exchange(link, Plan(parse("fp8"), "ring"))
        cost = exchange.run(torch.empty(0), BucketRequest(views=ParameterViews((), ())))
        return cost.wire_nbytes, cost.frames

    assert run_ranks(2, run) == [(0, 0)] * 2


@pytest.mark.parametrize("waits", [False, True])
def test_nan_with_one_codec_keeps_the_residuals_of_all(waits: bool, run_ranks: RunRanks) -> None:
    views = ParameterViews((8, 8, 8), (parse("quantize:8"), parse("bf16"), parse("quantize:8")))

    def run(link: Link) -> tuple[list[float], bool]:
        bucket = torch.linspace(-1.0, 1.0, 24)
        bucket[10] = float("nan")
        values = [torch.full((8,), 0.25) for _ in range(3)]
        residual = Residual(values, torch.empty(24), waits)
        exchange = Exchange(link, Plan(parse("fp8"), "ring", residual=True))
        cost = exchange.run(bucket, BucketRequest(views=views, residual=residual))
        assert cost.nonfinite == 1
        return torch.cat(values).tolist(), residual.replaced

    assert run_ranks(2, run) == [([0.25] * 24, False)] * 2


@pytest.mark.parametrize("value", [float("nan"), 0.5])
def test_so_they_are_with_codecs_that_run_one_after_the_other(value: float, run_ranks: RunRanks) -> None:
    views = ParameterViews((8, 8, 8), (parse("quantize:8"), parse("bf16"), parse("quantize:8")))

    def run(link: Link, algorithm: str) -> tuple[torch.Tensor, torch.Tensor]:
        bucket, residual = torch.linspace(-1.0, 1.0, 24), torch.full((24,), 0.25)
        bucket[10] = value
        exchange = Exchange(link, Plan(parse("fp8"), algorithm, residual=True))
        exchange.run(bucket, BucketRequest(views=views, residual=residual))
        return bucket, residual

    one_by_one = run_ranks(2, run, "backend", links=[Summing(link) for link in loopback(2)])
    for found, together in zip(one_by_one, run_ranks(2, run, "ring"), strict=True):
        assert all(map(torch.equal, map(bits, found), map(bits, together)))
        assert (found[1].tolist() == [0.25] * 24) == (value != 0.5)


def test_a_residual_stays_if_the_run_of_a_later_codec_fails(run_ranks: RunRanks) -> None:
    views = ParameterViews((8, 8), (parse("quantize:8"), parse("bf16")))
    residuals = [torch.full((16,), 0.25) for _ in range(2)]

    def run(link: Link) -> None:
        exchange = Exchange(link, Plan(parse("fp8"), "backend", residual=True))
        exchange.run(torch.linspace(-1.0, 1.0, 16), BucketRequest(views=views, residual=residuals[link.rank]))

    broken = Fault("fail", rank=1, step=2)  # a run of a ring of two sends two frames
    links = [Summing(FaultyLink(link, [broken])) for link in loopback(2)]
    assert all(isinstance(each, ExchangeError) for each in run_ranks(2, run, links=links, errors="return"))
    assert [each.tolist() for each in residuals] == [[0.25] * 16] * 2


def test_what_does_not_match_the_views_is_refused_before_anything_is_sent(run_ranks: RunRanks) -> None:
    views = ParameterViews((8, 8), (parse("fp8"), parse("bf16")))

    def run(link: Link) -> int:
        exchange = Exchange(link, Plan(parse("fp8"), "ring"))
        with pytest.raises(TensorError, match=r"expected views of 15 elements, .* got views of 16"):
            exchange.run(torch.zeros(15), BucketRequest(views=views))
        with pytest.raises(TensorError, match="expected a residual of 16 elements"):
            exchange.run(torch.zeros(16), BucketRequest(views=views, residual=torch.zeros(20)))
        for borders in ([0, 16], [0, 5, 16]):
            with pytest.raises(TensorError, match="expected norms for 2 parameters, got norms for other"):
                exchange.run(torch.zeros(16), BucketRequest(views=views, norms=Norms(borders)))
        return exchange.run(torch.zeros(16), BucketRequest(views=views)).frames

    assert min(run_ranks(2, run)) > 0


def test_a_closed_exchange_refuses_views_without_parameters(run_ranks: RunRanks) -> None:
    def run(link: Link) -> None:
        exchange = Exchange(link, Plan(parse("fp8"), "ring"))
        exchange.close()
        with pytest.raises(ExchangeError, match="can no longer be used"):
            exchange.run(torch.empty(0), BucketRequest(views=ParameterViews((), ())))

    run_ranks(2, run)
