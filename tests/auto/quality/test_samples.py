from __future__ import annotations

import numpy as np
import pytest
import torch

from gradwire.auto.quality.samples import MOST_COUNT, Samples
from gradwire.codecs import parse


def sampled(*buckets: tuple[torch.Tensor, list[tuple[int, ...]]]) -> Samples:
    samples = Samples()
    for values, shapes in buckets:
        samples.expect(shapes, [f"parameter {each}" for each in range(len(shapes))])
        samples.add(values)
    return samples


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
        ("ecsq:0.25", 0.09, 0.19),
        ("fp8", 0.03, 0.05),
        ("ecsq:0.25,foot", 0.08, 0.1),
    ):
        codec = parse(spec)
        decoded = torch.empty_like(flat)
        codec.decode(codec.encode(flat), decoded)
        assert float((decoded - flat).norm() / flat.norm()) < alone
        lost = worst(sampled((flat, [shape])), spec)
        assert lost > of_most if spec == "ecsq:0.25" else lost < of_most


def test_of_a_large_matrix_the_rows_that_were_kept_count() -> None:
    values = torch.ones(3, MOST_COUNT // 2)
    assert worst(sampled((values.flatten(), [tuple(values.shape)])), "bf16") == 0.0


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
    assert samples.part(["bias", "scale"]) == 20 / 32
    assert samples.part([]) == Samples().part([]) == 0


def test_what_is_lost_depends_on_whether_parameters_begin_blocks_of_their_own() -> None:
    generator, codec = torch.Generator().manual_seed(1), parse("ecsq:0.25")
    counts = (80_000, 400, 80_000)
    parts = [
        scale * torch.randn(n, generator=generator) for n, scale in zip(counts, (1, 1e-3, 1), strict=True)
    ]
    lost = []
    for placed_for in (None, 4):
        samples = Samples(placed_for=placed_for)
        samples.expect([(each,) for each in counts], ["w", "bias", "v"])
        samples.add(torch.cat(parts))
        lost.append(samples.shares(codec))
    assert lost[0][1] > 0.4  # FSDP's shards lie side by side
    assert lost[1][1] < 0.1
    assert lost[0][0] == pytest.approx(lost[1][0], rel=0.02)
