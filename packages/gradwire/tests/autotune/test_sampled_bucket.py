from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.autotune.sampler import BucketSampler
from gradwire.autotune.samples import Samples
from gradwire.autotune.settings import DEFAULT
from gradwire.costs import ExchangeCost
from gradwire.exchange.request import BucketRequest, Half
from gradwire.sync.layout import Layout
from support.bucket_requests import request_of
from support.ranks import run_ranks
from support.sums import bits

COUNTS, NAMES = [600, 40], ["weight", "bias"]
WHOLE = BucketRequest()
MIXED = Plan.of("quantize:4", residual=False, codecs=[{"match": "bias", "codec": "bf16"}])


def sampler(
    samples: Samples,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    request: BucketRequest = WHOLE,
    *,
    drawn: bool = True,
    copies: int = 1,
    **options: Any,
) -> BucketSampler:
    """Return what samples a bucket of these parameters, or of ``copies`` shards of each."""
    counts = tuple(math.prod(each) // copies for each in shapes)
    layout = Layout(tuple(names), counts, ("",) * len(counts), copies)
    work: Any = SimpleNamespace(layout=layout, request=request)
    return BucketSampler(samples, work, dict(zip(names, shapes, strict=True)), drawn=drawn, **options)


def run(observer: BucketSampler, exchange: Exchange, values: torch.Tensor) -> ExchangeCost:
    """Exchange a bucket as the communication thread does."""
    observer.before(values)
    cost = exchange.run(values, observer._work.request)
    cost += observer.after(values, exchange)
    return cost


def gradient(rank: int) -> torch.Tensor:
    values = torch.randn(sum(COUNTS), generator=torch.Generator().manual_seed(rank))
    values[600:] *= 0.01
    return values


def share(found: torch.Tensor, exact: npt.NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found.double().numpy() - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("average", [True, False])
def test_what_whole_exchanges_lose_of_a_drawn_bucket_is_known_on_all_ranks(world: int, average: bool) -> None:
    def body(link: Link) -> tuple[Samples, list[torch.Tensor], list[float]]:
        exchange, samples, tensors, nbytes = Exchange(link, MIXED), Samples(), [], []
        for codecs in (MIXED.codecs, ()):  # what the plan gives, and what its codec alone would
            exchange.follow(Plan.of("quantize:4", residual=False, codecs=codecs))
            tensors.append(gradient(link.rank))
            exchange.run(tensors[-1], request_of(exchange, NAMES, COUNTS, average=average))
        exchange.follow(MIXED)
        for drawn in (False, True):
            tensor, request = gradient(link.rank), request_of(exchange, NAMES, COUNTS, average=average)
            observer = sampler(samples, NAMES, [(600,), (40,)], request, drawn=drawn)
            nbytes.append(run(observer, exchange, tensor).raw_nbytes)
            assert torch.equal(bits(tensor), bits(tensors[0])), "a sampled step is one like any other"
            assert (samples.shadow is not None) == drawn
        return samples, tensors, nbytes

    results = run_ranks(world, body)
    exact = torch.stack([gradient(rank) for rank in range(world)]).double().sum(0).numpy()
    exact = exact / (world if average else 1)
    for rank, (samples, tensors, nbytes) in enumerate(results):
        shadow = samples.shadow
        assert shadow is not None
        first = results[0][0].shadow
        assert first is not None
        assert shadow.planned == pytest.approx(first.planned, rel=1e-12), "ranks hold the same bits"
        assert shadow.plain == pytest.approx(first.plain, rel=1e-12)
        for found, tensor in ((shadow.planned, tensors[0]), (shadow.plain, tensors[1])):
            wanted = [share(tensor[:600], exact[:600]), share(tensor[600:], exact[600:])]
            assert [found[name] for name in NAMES] == pytest.approx(wanted, rel=1e-3)
        assert shadow.planned["bias"] < 0.01 < 0.9 < shadow.plain["bias"]
        assert nbytes[1] == pytest.approx(3 * nbytes[0], rel=0.1), "the bytes of all three are counted"
        assert torch.equal(samples.flat, gradient(rank).repeat(2))


def test_an_average_that_is_not_finite_says_nothing() -> None:
    def body(link: Link) -> object:
        exchange, samples = Exchange(link, Plan.of("fp8")), Samples()
        tensor = gradient(link.rank)
        tensor[5] = torch.inf if link.rank == 1 else 0.0
        run(sampler(samples, NAMES, [(600,), (40,)]), exchange, tensor)
        return samples.shadow

    assert run_ranks(2, body) == [None] * 2


SHAPES = [(40, 10), (10,), (3000,), (7,), (20, 5)]


@pytest.mark.parametrize("step", range(12))
def test_of_a_large_bucket_whole_parameters_or_rows_of_one_are_compared(step: int) -> None:
    config = replace(DEFAULT, compared_count=512)
    starts = [0, 400, 410, 3410, 3417, 3517]

    def body(link: Link) -> tuple[dict[str, float], torch.Tensor, float, slice]:
        exchange = Exchange(link, Plan.of("quantize:4", residual=False))
        samples = Samples(step=step, config=config)
        observer = sampler(samples, list("abcde"), SHAPES)
        tensor = torch.randn(3517, generator=torch.Generator().manual_seed(link.rank))
        cost = run(observer, exchange, tensor)
        assert samples.shadow is not None
        assert samples.shadow.planned == samples.shadow.plain
        return dict(samples.shadow.planned), tensor, cost.raw_nbytes, observer._part()[1]

    (shares, found, nbytes, floats), (others, _, _, _) = run_ranks(2, body)
    assert shares == pytest.approx(others, rel=1e-12)
    own = [torch.randn(3517, generator=torch.Generator().manual_seed(rank)) for rank in (0, 1)]
    exact = torch.stack(own).double().mean(0).numpy()
    for name, lost in shares.items():
        place = "abcde".index(name)
        part = slice(max(starts[place], floats.start), min(starts[place + 1], floats.stop))
        wanted = share(found[part], exact[part])
        of_rows = name in "ae" and lost > wanted
        assert of_rows or lost == pytest.approx(wanted, rel=1e-3)
    assert "".join(shares) in ("ab", "b", "c", "de")
    compared = sum(min(math.prod(SHAPES["abcde".index(name)]), 512) for name in shares)
    assert nbytes == pytest.approx(4 * (3517 + compared), rel=0.02), "bytes are those of what is compared"


@pytest.mark.parametrize(
    "shapes",
    [
        SHAPES,
        [(600,)],
        [(10,), (600,)],
        [(600,), (10,)],
        [(0,), (3, 4)],
        [(512,)],
        [(80, 50)],
        [(3, 7, 11), (2, 2)],
    ],
)
def test_steps_compare_different_parts(shapes: list[tuple[int, ...]]) -> None:
    config = replace(DEFAULT, compared_count=512, least_compared_count=64)
    names = list("abcde")[: len(shapes)]
    total = sum(map(math.prod, shapes))
    most, seen = min(512, max(64, total // 8)), np.zeros(total, bool)
    for step in range(0, 240 * 400, 240):
        samples = Samples(step=step, config=config)
        compared, floats = sampler(samples, names, shapes)._part()
        counts = [math.prod(each) for each in shapes[compared]]
        assert 0 < floats.stop - floats.start == (min(sum(counts), most) if len(counts) == 1 else sum(counts))
        begin = sum(math.prod(each) for each in shapes[: compared.start])
        assert begin <= floats.start
        assert floats.stop <= begin + sum(counts)
        row = math.prod(shapes[compared.start][1:])
        assert row > most or (floats.start - begin) % row == 0, "a part begins with a row"
        seen[floats] = True
    assert seen.mean() > 0.9, "all have their turn"


@pytest.mark.parametrize("world", [2, 3])
def test_of_scattered_shards_each_rank_compares_its_chunk_of_the_sum(world: int) -> None:
    """Every rank has a shard of each parameter, one rank's after the other's."""
    shapes = [(4 * world, 6), (2 * world,)]
    count = 26 * world

    def own(rank: int) -> torch.Tensor:
        return torch.randn(count, generator=torch.Generator().manual_seed(rank))

    def body(link: Link) -> tuple[Samples, int]:
        exchange, samples = Exchange(link, Plan.of("fp8")), Samples()
        request = BucketRequest(half=Half.REDUCE)
        run(sampler(samples, NAMES, shapes, request, copies=world), exchange, own(link.rank))
        return samples, link.rank

    for samples, rank in run_ranks(world, body):
        shadow = samples.shadow
        assert shadow is not None
        assert shadow.planned == shadow.plain
        assert list(shadow.plain) == NAMES
        assert all(0.0 < each < 0.1 for each in shadow.plain.values())
        assert (samples.names, samples.sizes) == (NAMES, [24 * world, 2 * world])
        shards = own(rank).view(world, 26)
        wanted = torch.cat([shards[:, :24].reshape(-1), shards[:, 24:].reshape(-1)])
        assert torch.equal(samples.flat, wanted), "the shards of a parameter, one after the other"


def test_a_whole_gradient_is_sampled_in_parts() -> None:
    few = replace(DEFAULT, sample_count=5, least_sample_count=1)
    samples, values = Samples(config=few), torch.arange(24.0)
    shapes = [(2, 4), (8,), (2, 2, 2)]
    sampler(samples, ["a", "b", "c"], shapes, drawn=False, part_nbytes=4 * 8).before(values)
    assert sorted(samples.counts) == [8, 8, 8]
    assert samples.names == ["c", "b", "a"], "backward has the last ones ready first"
    assert samples.flat.tolist() == [*range(16, 20), *range(8, 13), *range(4)], "whole rows of matrices"


def test_a_parameter_of_which_the_model_says_nothing_is_one_row() -> None:
    samples = Samples()
    layout = Layout(("some of them", "rows"), (6, 8), ("", ""))
    work: Any = SimpleNamespace(layout=layout, request=BucketRequest())
    BucketSampler(samples, work, {"rows": (100, 4)}).before(torch.ones(14))
    assert samples._shapes == [[(6,), (2, 4)]]


@pytest.mark.parametrize("average", [True, False])
def test_the_sums_of_sampled_values_are_kept_after_the_exchange(average: bool) -> None:
    shapes = [(600,), (40,)]

    def body(link: Link) -> tuple[Samples, torch.Tensor]:
        exchange, samples, tensor = Exchange(link, Plan()), Samples(), gradient(link.rank)
        request = request_of(exchange, NAMES, COUNTS, average=average)
        observer = sampler(samples, NAMES, shapes, request, drawn=False)
        observer.before(tensor)
        assert not samples.has_sums
        exchange.run(tensor, request)
        observer.after(tensor, exchange)
        return samples, tensor

    wanted = sum(gradient(rank) for rank in range(3))
    for samples, tensor in run_ranks(3, body):
        assert samples.has_sums
        torch.testing.assert_close(samples.flat_sums, wanted)
        tensor.fill_(math.nan)
        torch.testing.assert_close(samples.flat_sums, wanted)


def test_of_a_large_bucket_the_same_values_are_kept_of_gradient_and_sum() -> None:
    samples = Samples(config=replace(DEFAULT, sample_count=1000, least_sample_count=10))
    values = torch.arange(20_100.0)
    samples.store(samples.expect([(200, 100), (100,)], ["weight", "bias"]), values)
    samples.store_sums(0, values / 2, 4)
    assert 100 < samples.flat.numel() < 20_000
    assert torch.equal(samples.flat_sums, 2 * samples.flat)


def test_without_all_finite_sums_none_are_used() -> None:
    samples = Samples()
    for values in (torch.ones(8), torch.ones(8)):
        samples.store(samples.expect([(8,)], ["a"]), values)
    known = []
    samples.store_sums(1, torch.full((8,), 3.0), 2)
    known.append(samples.has_sums)  # those of the first bucket are missing
    samples.store_sums(0, torch.ones(8), 2)
    known.append(samples.has_sums)
    assert samples.flat_sums.tolist() == [2.0] * 8 + [6.0] * 8, "in the order of the buckets"
    samples.store_sums(1, torch.full((8,), math.inf), 2)
    known.append(samples.has_sums)
    assert known == [False, True, False]


def test_a_shards_exchange_has_no_sums() -> None:
    def body(link: Link) -> bool:
        samples, tensor = Samples(), gradient(link.rank)
        request = replace(WHOLE, half=Half.REDUCE)
        observer = sampler(samples, NAMES, [(600,), (40,)], request, drawn=False, copies=2)
        observer.before(tensor)
        observer.after(tensor, Exchange(link, Plan()))
        return samples.has_sums

    assert run_ranks(2, body) == [False, False]
