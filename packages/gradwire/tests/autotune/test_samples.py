from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gradwire import Auto
from gradwire.autotune.costs import at_once
from gradwire.autotune.samples import Samples, part_of
from gradwire.autotune.settings import DEFAULT
from gradwire.codecs import parse

MOST_COUNT = DEFAULT.sample_count


def sampled(*buckets: tuple[torch.Tensor, list[tuple[int, ...]]]) -> Samples:
    samples = Samples()
    for values, shapes in buckets:
        samples.store(samples.expect(shapes, [f"parameter {each}" for each in range(len(shapes))]), values)
    return samples


def test_lanes_may_store_buckets_in_any_order() -> None:
    values = {
        name: torch.full((2 * count,), float(count)) for name, count in (("a", 30), ("b", 20), ("c", 10))
    }
    samples = Samples()
    indices = {name: samples.expect([(2, len(each) // 2)], [name]) for name, each in values.items()}
    known = []
    for name in ("c", "a", "b"):
        samples.store(indices[name], values[name])
        known.append(samples.finite)
    assert known == [False, False, True], "until then, a bucket is missing"
    assert samples.names == ["a", "b", "c"]
    assert torch.equal(samples.flat, torch.cat([*values.values()]))
    wanted = [
        norm
        for count in (30, 20, 10)
        for norm in [count * math.sqrt(2)] * count + [count * math.sqrt(count)] * 2
    ]
    assert sorted(at_once(samples.slice_norms()).tolist()) == pytest.approx(sorted(wanted))


def worst(samples: Samples, spec: str) -> float:
    return max(samples.shares(parse(spec)), default=0.0)


@pytest.mark.parametrize("spec", ["bf16", "quantize:4", "topk:0.1"])
def test_every_parameter_has_its_share(spec: str) -> None:
    values = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    values[2000:] *= 1e-3
    codec = parse(spec)
    decoded = torch.empty_like(values)
    codec.decode(codec.encode(values), decoded)
    x, y = values.double().numpy(), decoded.double().numpy()
    shares = [
        np.linalg.norm(x[part] - y[part]) / np.linalg.norm(x[part])
        for part in (slice(2000), slice(2000, 3000))
    ]
    samples = sampled((values, [(2000,), (1000,)]))
    assert samples.shares(codec) == pytest.approx(shares, rel=1e-5)
    assert (samples.names, samples.sizes) == (["parameter 0", "parameter 1"], [2000, 1000])


def test_it_copies_and_keeps_the_beginning_of_a_large_bucket() -> None:
    large = torch.ones(MOST_COUNT + 10)
    small = torch.full((4,), 2.0)
    samples = sampled((large, [(MOST_COUNT - 5,), (15,)]), (small, [(1,), (3,)]))
    large.zero_()
    assert samples.counts == [MOST_COUNT + 10, 4]
    assert samples.flat.numel() == MOST_COUNT + 4
    assert samples.flat.sum() == MOST_COUNT + 8
    assert samples.finite


@pytest.mark.parametrize("across", ["columns", "rows"])
def test_a_matrix_whose_columns_differ_hides_no_small_ones(across: str) -> None:
    """Features that nobody has normalised: the norm of the whole matrix is that of a few columns."""
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(64, 32, generator=generator) * torch.logspace(-2, 2, 32)
    flat = (values if across == "columns" else values.T.contiguous()).flatten()
    shape = (64, 32) if across == "columns" else (32, 64)
    for spec, alone, of_most in (
        ("ecsq:0.25", 0.09, 0.39),
        ("fp8", 0.03, 0.05),
        ("ecsq:0.25,foot", 0.08, 0.15),
    ):
        codec = parse(spec)
        decoded = torch.empty_like(flat)
        codec.decode(codec.encode(flat), decoded)
        assert float((decoded - flat).norm() / flat.norm()) < alone
        lost = worst(sampled((flat, [shape])), spec)
        assert lost > of_most if spec == "ecsq:0.25" else lost < of_most


def test_a_codec_that_takes_most_of_five_columns_in_sixteen_is_refused_by_far() -> None:
    """It costs a network on such a table 13 % of its loss (docs/auto.md)."""
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(64, 16, generator=generator) * torch.logspace(-2, 1, 16)
    values *= torch.randn(64, 1, generator=generator)  # rows differ in scale, as what neurons are to change
    samples = sampled((values.flatten(), [(64, 16)]))
    assert worst(samples, "bfp:7x16") > 1.5 * Auto().max_lost_norm
    assert worst(samples, "fp8") < 0.1


def test_rows_and_columns_of_a_rank_count_beside_those_of_all_ranks() -> None:
    """Each rank's examples light up other features: what fades on one of them is there on the other."""
    generator, codec = torch.Generator().manual_seed(3), parse("ecsq:0.25")
    shapes, of_rank = [(64, 32), (7,), (20, 40)], []
    for rank in range(2):
        values = [torch.randn(shape, generator=generator) for shape in shapes]
        values[0][:, rank::2] *= 1e-4
        values[2][rank::2] *= 1e-4
        of_rank.append(values)
    judged = [
        sampled(
            (torch.cat([w.flatten(), b]), shapes[:2]), (torch.cat([v.flatten(), b]), [shapes[2], shapes[1]])
        )
        for w, b, v in of_rank
    ]
    alone = [each.shares(codec) for each in judged]
    norms = torch.stack([at_once(each.slice_norms()) for each in judged]).mean(0)
    for each in judged:
        each.compare_with(norms)
    for rank, (own, beside) in enumerate(zip(alone, (each.shares(codec) for each in judged), strict=True)):
        assert min(own[0], own[2]) > 0.19
        assert max(beside) < 0.12
        assert beside[1::2] == own[1::2], "a vector has neither"
        weight = of_rank[rank][0]
        flat = torch.cat([weight.flatten(), of_rank[rank][1]])
        codec.decode(codec.encode(flat), decoded := torch.empty_like(flat))
        lost = (decoded[: 64 * 32].view(64, 32) - weight).numpy().astype(np.float64)
        both = np.stack([values[0].numpy().astype(np.float64) for values in of_rank])
        found = [np.linalg.norm(lost) / np.linalg.norm(weight)]
        for axis in (0, 1):
            mean = np.linalg.norm(both, axis=1 + axis).mean(0)
            beside_all = np.maximum(np.linalg.norm(both[rank], axis=axis), mean)
            found.append(np.quantile(np.linalg.norm(lost, axis=axis) / beside_all, 0.9) / DEFAULT.slice_room)
        assert beside[0] == pytest.approx(max(found), rel=1e-4)


def test_columns_and_rows_that_are_not_finite_count_with_their_own_norm_alone() -> None:
    values = torch.ones(4, 4)
    values[1, 2] = torch.inf
    norms = at_once(sampled((values.flatten(), [(4, 4)])).slice_norms())
    assert norms.tolist() == [2.0, 2.0, 0.0, 2.0, 2.0, 0.0, 2.0, 2.0]
    assert at_once(Samples().slice_norms()).numel() == 0


def test_norms_are_float32_on_the_host_whatever_torch_s_defaults_are() -> None:
    samples = sampled((torch.ones(4, dtype=torch.float32), [(2, 2)]))
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        norms = at_once(samples.slice_norms())
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert (norms.dtype, norms.device.type) == (torch.float32, "cpu")
    assert norms.tolist() == pytest.approx([2**0.5] * 4)


def test_of_a_large_matrix_the_rows_that_were_kept_count() -> None:
    values = torch.ones(3, MOST_COUNT // 2)
    samples = sampled((values.flatten(), [tuple(values.shape)]))
    assert worst(samples, "bf16") == 0.0
    assert at_once(samples.slice_norms()).numel() == MOST_COUNT // 2 + 2


def test_nothing_lost_all_lost_and_nothing_there() -> None:
    assert worst(sampled((torch.randn(64), [(64,)])), "identity") == 0.0
    assert worst(sampled((torch.zeros(64), [(32,), (32,)])), "bf16") == 0.0
    assert worst(sampled((torch.full((64,), 2.0**-12), [(64,)])), "errbound:2^-10") == 1.0
    assert worst(Samples(), "bf16") == 0.0


def test_what_is_not_finite_or_not_there_measures_nothing() -> None:
    assert not Samples().finite
    assert not sampled((torch.ones(8), [(8,)]), (torch.tensor([1.0, torch.inf]), [(2,)])).finite


def test_the_part_of_some_parameters_is_that_of_their_values() -> None:
    samples = Samples()
    samples.expect([(3, 4), (4,)], ["weight", "bias"])
    samples.expect([(16,)], ["scale"])
    assert part_of(["bias", "scale"], samples.size_of) == 20 / 32
    assert part_of([], samples.size_of) == part_of([], Samples().size_of) == 0


def test_what_is_lost_depends_on_whether_parameters_begin_blocks_of_their_own() -> None:
    generator, codec = torch.Generator().manual_seed(1), parse("ecsq:0.25")
    counts = (80_000, 400, 80_000)
    parts = [
        scale * torch.randn(n, generator=generator) for n, scale in zip(counts, (1, 1e-3, 1), strict=True)
    ]
    lost = []
    for placed_for in (None, 4):
        samples = Samples(placed_for=placed_for)
        samples.store(samples.expect([(each,) for each in counts], ["w", "bias", "v"]), torch.cat(parts))
        lost.append(samples.shares(codec))
    assert lost[0][1] > 0.4  # FSDP's shards lie side by side
    assert lost[1][1] < 0.1
    assert lost[0][0] == pytest.approx(lost[1][0], rel=0.02)
