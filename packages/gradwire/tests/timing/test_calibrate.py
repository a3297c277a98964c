from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import TensorError
from gradwire.links.base import Link
from gradwire.timing.calibrate import (
    LONGEST_REST_S,
    REPEATS,
    codec_cost,
    cost_on_other_gradients,
    end_cost,
    lost_share,
    rest_between_segments,
    sums,
)
from gradwire.timing.line import EndCost, Line, both_ends


def laplace(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(count, generator=generator) - 0.5
    return -1e-3 * uniform.sign() * torch.log1p(-2 * uniform.abs()).clamp(min=-20)


SAMPLES = [laplace(1 << 16, seed) for seed in range(3)]


def test_sizes_are_those_of_real_payloads_of_sums() -> None:
    codec = parse("errbound:2^-10")
    cost = codec_cost(codec, SAMPLES, world=3, segment_nbytes=1 << 18)
    assert [point.terms for point in cost.points] == [1, 2, 3]
    total = SAMPLES[0] + SAMPLES[1] + SAMPLES[2]
    assert cost.at(3).nbytes == pytest.approx(codec.encode(total).numel() / total.numel(), rel=1e-6)
    assert cost.at(1).nbytes < cost.at(3).nbytes
    assert 0 < cost.at(1).largest_error <= 2**-10


def test_on_other_gradients_a_codec_is_as_fast_and_its_payloads_are_those_of_the_others() -> None:
    codec, others = parse("ecsq:0.5,sum=0.25"), [each.clone() for each in SAMPLES]
    for each in others:
        each[1000:] = 0.0
    known = codec_cost(codec, SAMPLES, world=3)
    cost = cost_on_other_gradients(known, codec, sums(others, 3))
    assert cost.finished is not None
    assert known.finished is not None
    for now, was in zip(cost.all_points, known.all_points, strict=True):
        total = sums(others, 3)[now.terms]
        used = codec if now is not cost.finished else codec.of_sums
        assert now.nbytes == used.encode(total).numel() / total.numel() < was.nbytes
        assert now.lost == pytest.approx(lost_share(used, total, total.numel()))
        for name in ("terms", "encode_s", "decode_s", "decode_add_s"):
            assert getattr(now, name) == getattr(was, name)
    assert (cost.call_s, cost.codec, cost.disagreement) == (known.call_s, known.codec, known.disagreement)


@pytest.mark.parametrize(("spec", "nbytes"), [("identity", 4.0), ("bf16", 2.0), ("truncate:16", 2.0)])
def test_fixed_formats_have_fixed_sizes(spec: str, nbytes: float) -> None:
    cost = codec_cost(parse(spec), SAMPLES, world=8)
    assert [point.terms for point in cost.points] == [1, 2, 4, 8]  # more terms than samples
    for point in cost.points:
        assert point.nbytes == pytest.approx(nbytes, rel=1e-3)
        assert min(point.encode_s, point.decode_s, point.decode_add_s) >= 0
    assert cost.call_s > 0
    assert cost.codec == spec


def test_within_one_measurement_repeats_may_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_other_takes_twice_as_long(*_: object) -> dict[str, list[float]]:
        return {name: [1e-3, 2e-3] * 5 for name in ("encode_s", "decode_s", "decode_add_s")}

    monkeypatch.setattr("gradwire.timing.calibrate._seconds", every_other_takes_twice_as_long)
    assert codec_cost(parse("bf16"), SAMPLES, world=4).disagreement == pytest.approx(1 / 3)


def test_non_finite_gradients_do_not_spoil_the_largest_error() -> None:
    spoilt = SAMPLES[0].clone()
    spoilt[7] = float("nan")
    assert codec_cost(parse("errbound:2^-10"), [spoilt], world=1).at(1).largest_error <= 2**-10


@pytest.mark.parametrize("samples", [[], [torch.zeros(4), torch.zeros(5)], [torch.zeros(0)]])
def test_gradients_that_cannot_be_used_are_refused(samples: list[torch.Tensor]) -> None:
    with pytest.raises(TensorError, match=r"expected .*gradient.* for calibration, got"):
        codec_cost(parse("bf16"), samples, world=2)


@pytest.mark.parametrize("spec", ["identity", "truncate:16", "quantize:4"])
def test_the_lost_share_is_that_of_one_encoding(spec: str) -> None:
    codec, x = parse(spec), laplace(10_000, 0)
    decoded = torch.empty_like(x)
    for part, out in zip(torch.split(x, 4096), torch.split(decoded, 4096), strict=True):
        codec.decode(codec.encode(part), out)
    share = float((decoded - x).double().norm() / x.double().norm())
    assert lost_share(codec, x, 4096) == pytest.approx(share)
    assert (share == 0) == codec.EXACT
    (point,) = codec_cost(codec, [x[:4096]], 1, 4 * 4096).points
    assert point.lost == pytest.approx(lost_share(codec, x[:4096]))


def test_of_nothing_all_that_is_decoded_counts_and_of_no_number_too() -> None:
    bf16 = parse("bf16")
    assert lost_share(bf16, torch.zeros(9)) == 0
    assert lost_share(bf16, torch.tensor([1.0, math.inf])) == 1


def test_a_thread_rests_as_long_as_a_compressed_segment_is_on_the_line() -> None:
    assert rest_between_segments(Line(0.0, 1e9), 1 << 20) == (1 << 18) / 1e9
    assert rest_between_segments(Line(0.0, 1e3), 1 << 20) == LONGEST_REST_S
    assert rest_between_segments(Line(0.0, math.inf), 1 << 20) == 0


def test_rests_take_their_time_and_are_not_counted() -> None:
    rest_s = 2e-3
    started = time.monotonic()
    cost = codec_cost(parse("bf16"), SAMPLES, world=2, segment_nbytes=1 << 16, rest_s=rest_s)
    assert time.monotonic() - started > 2 * 3 * REPEATS * rest_s  # two points, three calls
    assert max(point.encode_s for point in cost.points) * (1 << 14) < rest_s


def test_every_rank_returns_and_each_side_knows_its_own_costs(run_ranks: Callable[..., list[Any]]) -> None:
    barrier = threading.Barrier(3)

    def meet() -> None:
        barrier.wait(30)

    def measure(link: Link) -> EndCost:
        return end_cost(link, meet)

    receiver, sender, alone = run_ranks(3, measure)
    assert min(sender.frame_s, receiver.frame_s) > 0
    assert alone.frame_s == 0
    both = both_ends(sender, receiver, cores=2, ranks_per_machine=3)
    assert (both.send_s, both.receive_s) == (sender.frame_s, receiver.frame_s)
    assert (both.cores, both.ranks_per_machine) == (2, 3)
