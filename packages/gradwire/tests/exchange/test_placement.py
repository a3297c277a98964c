"""Parameters in blocks of their own: nothing of one is lost beside another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs import Identity, parse
from gradwire.exchange.views import CodecPart, unit_of


def placed(counts: Sequence[int], unit: int, chunks: int = 1) -> CodecPart:
    """Return parameters that fill a bucket."""
    ranges = tuple(pairwise(accumulate(counts, initial=0)))
    return CodecPart(Identity(), tuple(range(len(counts))), ranges, unit, chunks)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.sampled_from([1, 2, 64, 1024]))
def test_each_parameter_begins_at_a_multiple_and_comes_back(counts: list[int], unit: int) -> None:
    part = placed(counts, unit)
    parameters = [torch.randn(count) for count in counts]
    values = part.joined(torch.cat(parameters))
    assert values.numel() == part.borders[-1]
    assert all(border % unit == 0 for border in part.borders[:-1])
    for own, found in zip(parameters, part.apart(values), strict=True):
        assert torch.equal(own, found)
    assert float(values.abs().sum()) == pytest.approx(
        float(sum(each.abs().sum() for each in parameters)), rel=1e-5
    )
    if part.sizes == part.counts:
        assert torch.equal(values, torch.cat(parameters))


def test_what_it_returns_are_views() -> None:
    part = placed((3, 5), 4)
    values = part.joined(torch.zeros(8))
    part.apart(values)[1].fill_(7.0)
    assert values.tolist() == [0.0] * 4 + [7.0] * 5 + [0.0] * 3


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.integers(1, 9))
def test_chunks_begin_at_multiples_too(counts: list[int], chunks: int) -> None:
    part = placed(counts, 64, chunks)
    n = part.borders[-1]
    assert all((n * chunk // chunks) % 64 == 0 for chunk in range(chunks))
    assert 0 <= n - sum(-(-count // 64) * 64 for count in counts) < 64 * chunks
    assert [each.numel() for each in part.apart(part.joined(torch.ones(sum(counts))))] == counts


def test_codecs_without_blocks_of_an_own_scale_leave_no_gaps() -> None:
    for spec in ("bf16", "fp8", "identity"):
        assert unit_of(parse(spec), [100, 3, 50], 4) == 1


@pytest.mark.parametrize("spec", ["ecsq:0.25", "ecsq:0.25,block=64"])
def test_blocks_are_filled_up_only_where_that_is_cheap(spec: str) -> None:
    codec = parse(spec)
    block = codec.parameter_unit
    assert unit_of(codec, [100 * block, 10, 100 * block], 4) == block
    assert unit_of(codec, [2 * block, 10, 2 * block], 4) == 1
    assert unit_of(codec, [30 * block, 10, 30 * block], 2) == block
    assert unit_of(codec, [30 * block, 10, 30 * block], 100) == 1
    assert unit_of(codec, [100 * block, *[1] * 40], 4) == 1


@pytest.mark.parametrize("spec", ["ecsq:0.25", "ecsq:0.25,block=64"])
def test_a_bias_a_thousand_times_smaller_is_not_lost(spec: str) -> None:
    generator = torch.Generator().manual_seed(1)
    counts, scales = (20_000, 100, 20_000), (1.0, 1e-3, 1.0)
    parameters = [torch.randn(n, generator=generator) * s for n, s in zip(counts, scales, strict=True)]
    codec, lost = parse(spec), []
    for unit in (1, unit_of(codec, counts, 4)):
        part = placed(counts, unit)
        values = part.joined(torch.cat(parameters))
        decoded = torch.empty_like(values)
        codec.decode(codec.encode(values), decoded)
        bias = part.apart(decoded)[1]
        lost.append(float((bias - parameters[1]).norm() / parameters[1].norm()))
    assert lost[0] > 0.4
    assert lost[1] < 0.1
