"""Copies of segments: to their places before they are used, and back when they are final."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import Exchange, Plan
from gradwire.codecs import Identity, parse
from gradwire.errors import TensorError
from gradwire.exchange import Norms
from gradwire.exchange.views import CodecPart, SegmentCopies
from gradwire.links import Link, loopback
from gradwire.plan import SEGMENT_UNIT_NBYTES
from support.bucket_requests import request_of
from support.summing import Summing
from support.sums import bits

RunRanks = Callable[..., list[Any]]
COUNTS = (70_000, 3, 0, 50_010, 1, 4_000)
NAMES = ("a.weight", "a.bias", "nothing.bias", "b.weight", "b.bias", "c.weight")
ALGORITHMS = ("ring", "pairwise", "tree", "star", "butterfly", "hierarchical:2", "backend")


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), min_size=1, max_size=8),
    st.sampled_from([1, 64]),
    st.lists(st.integers(0, 3000), max_size=6),
)
def test_segments_are_what_all_parameters_joined_have_there(
    parameters: list[tuple[int, int]], unit: int, cuts: list[int]
) -> None:
    counts = tuple(count for count, _ in parameters)
    starts = [0, *accumulate(count + gap for count, gap in parameters)]  # others lie between them
    ranges = tuple((start, start + count) for start, count in zip(starts, counts, strict=False))
    part = CodecPart(Identity(), tuple(range(len(counts))), ranges, unit)
    bucket = torch.rand(starts[-1]) + 1
    joined = torch.zeros(part.borders[-1])
    for border, (start, stop) in zip(part.borders, ranges, strict=False):
        joined[border : border + stop - start] = bucket[start:stop]
    values = torch.full_like(joined, torch.nan)
    changed = bucket.clone()
    copies = SegmentCopies(changed, values, part)
    n = values.numel()
    segments = list(pairwise(sorted({0, *(cut % (n + 1) for cut in cuts), n})))
    for start, stop in segments:
        copies.load(start, stop)
    assert torch.equal(values, joined)
    assert torch.equal(part.joined(bucket), joined)
    values += 1
    for start, stop in segments:
        copies.load(start, stop)  # not again
        copies.store(start, stop)
    expected = bucket.clone()
    for start, stop in ranges:
        expected[start:stop] += 1
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_walk_that_copies_has_the_bits_of_one_whose_values_are_in_place(
    world: int, algorithm: str, run_ranks: RunRanks
) -> None:
    generator = torch.Generator().manual_seed(world)
    xs = [torch.randn(sum(COUNTS), generator=generator) for _ in range(world)]
    codecs = [{"match": "bias", "codec": "identity"}]
    codec = parse("ecsq:0.5,block=64,sum=0.35" if algorithm == "pairwise" else "ecsq:0.5,block=64")
    plan = Plan(codec, algorithm, segment_nbytes=SEGMENT_UNIT_NBYTES, codecs=codecs)

    def run(link: Link) -> list[torch.Tensor]:
        exchange, results = Exchange(link, plan), []
        for norms in (None, Norms([0, *accumulate(COUNTS)]), None):  # what is measured is joined first
            results.append(xs[link.rank].clone())
            exchange.run(results[-1], request_of(exchange, NAMES, COUNTS, norms=norms))
        return results

    for copied, joined, again in run_ranks(world, run):
        assert torch.equal(bits(copied), bits(joined))
        assert torch.equal(bits(copied), bits(again))
    mean = torch.stack(xs).mean(0)
    found = run_ranks(world, run)[0][0]
    assert torch.linalg.vector_norm(found - mean) < 0.5 * torch.linalg.vector_norm(mean)


def test_what_the_transport_sums_is_copied_whole(run_ranks: RunRanks) -> None:
    links = [Summing(link) for link in loopback(2)]
    plan = Plan(parse("bf16"), "backend", codecs=[{"match": "bias", "codec": "identity"}])

    def run(link: Link) -> list[torch.Tensor]:
        exchange = Exchange(link, plan)
        buckets = [torch.ones(sum(COUNTS)) for _ in range(2)]
        for bucket in buckets:
            exchange.run(bucket, request_of(exchange, NAMES, COUNTS, average=False))
        return buckets

    for link, buckets in zip(links, run_ranks(2, run, links=links), strict=True):
        assert link.summed == [4], "the biases, from their second exchange on"
        for bucket in buckets:
            assert torch.equal(bucket, torch.full_like(bucket, 2.0))


def test_a_bucket_of_another_dtype_is_refused_not_rounded(run_ranks: RunRanks) -> None:
    def run(link: Link) -> None:
        exchange = Exchange(link, Plan(parse("ecsq:0.25")))
        request = request_of(exchange, NAMES, COUNTS)
        with pytest.raises(TensorError, match="float32"):
            exchange.run(torch.zeros(sum(COUNTS), dtype=torch.float64), request)

    run_ranks(1, run)


def test_memory_for_copies_serves_within_inference_mode_and_outside(run_ranks: RunRanks) -> None:
    def run(link: Link) -> list[float]:
        exchange, found = Exchange(link, Plan(parse("ecsq:0.25"))), []
        for inference in (True, False):
            with torch.inference_mode(inference):
                bucket = torch.ones(sum(COUNTS))
                exchange.run(bucket, request_of(exchange, NAMES, COUNTS))
                found.append(float(bucket.mean()))
        return found

    for found in run_ranks(2, run):
        assert found == pytest.approx([1.0, 1.0], rel=0.1)


def test_memory_for_copies_is_kept(run_ranks: RunRanks) -> None:
    def run(link: Link) -> bool:
        exchange = Exchange(link, Plan())
        first, smaller = exchange._scratch(1000), exchange._scratch(10)
        return (first.numel(), smaller.numel()) == (1000, 10) and first.data_ptr() == smaller.data_ptr()

    assert all(run_ranks(2, run))
