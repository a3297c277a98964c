"""Entropy-coded quantisation against NumPy and a decoder of the entropy coder in Python."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gradwire.codecs import Codec, Ecsq, parse
from gradwire.errors import PayloadError, SpecError
from support.rans import decode_block

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]
Whole = npt.NDArray[np.int64]
SQUARE = [Ecsq(0.5), Ecsq(1, 64), Ecsq(2**-5, 4096), Ecsq(4, 65536)]
CODECS = [*SQUARE, Ecsq(0.25, foot=True), Ecsq(4, 64, foot=True)]
FEET = [0.0] + [sign * part * 2.0**-e for e in range(1, 17) for part in (1, 0.75) for sign in (1, -1)]
"""What the feet stand for, as shares of the scale: 1/2, -1/2, 3/8, -3/8, 1/4 ...."""


def quantised(x: torch.Tensor, codec: Ecsq) -> tuple[list[int], Whole]:
    """Return the upper halves of the scales, and q, by the formula."""
    scales, q = [], [np.zeros(0, dtype=np.int64)]
    for block in np.split(x.numpy(), range(codec.block, x.numel(), codec.block)):
        if not block.size:
            continue
        word, scale = _scale(block, codec.step)
        scales.append(word)
        if 0 < scale < math.inf:
            q.append(np.rint(block * (np.float32(1) / np.float32(scale))).astype(np.int64))
        else:
            q.append(np.zeros(block.size, dtype=np.int64))
    return scales, np.concatenate(q)


def _scale(block: npt.NDArray[np.float32], step: float) -> tuple[int, float]:
    if not np.isfinite(block).all():
        return 0x7FC0, math.nan
    wanted = step * math.sqrt(float(np.square(block.astype(np.float64)).mean())) * (1 - 2**-8)
    word = int(np.array([min(wanted, 2.0**127)], dtype=np.float32).view(np.uint32)[0]) >> 16
    word = word if word >= 0x80 else 0
    return word, float(np.array([word << 16], dtype=np.uint32).view(np.float32)[0])


def feet(x: torch.Tensor, codec: Ecsq) -> list[int]:
    """Return the feet, by the formula: the nearest of their values, away from 0 where two are as near."""
    found = list[int]()
    if not codec.foot:
        return found
    for block in np.split(x.numpy(), range(codec.block, x.numel(), codec.block)):
        _, scale = _scale(block, codec.step) if block.size else (0, 0.0)
        if not scale >= 2.0**-110:
            continue
        share = (block * (np.float32(1) / np.float32(scale))).astype(np.float64)
        for each in share[np.abs(share) <= 0.5]:
            positive = [foot for foot in range(1, 63, 2) if abs(each) >= 0.875 * 2.0**-16]
            nearest = min(positive, key=lambda foot: abs(FEET[foot] - abs(each)), default=0)
            found.append(nearest + int(np.signbit(each)) if nearest else 0)
    return found


def counts_of(n: int, codec: Ecsq) -> list[int]:
    """Return the numbers of values in the sections: one below 2^15 values, else two for each started 2^18."""
    length = n if n < 1 << 15 else math.ceil(n / (2 * math.ceil(n / (1 << 18))))
    whole = max(1, math.ceil(length / codec.block)) * codec.block
    return [min(whole, n - at) for at in range(0, n, whole)]


def read(payload: bytes, n: int, codec: Ecsq) -> tuple[list[int], Whole, list[int]]:
    """Return what a payload has for all three, by its documentation."""
    counts = counts_of(n, codec)
    sizes = struct.unpack_from(f"<{len(counts)}I", payload)
    at, scales, q, found_feet = 4 * len(sizes), list[int](), [np.zeros(0, dtype=np.int64)], list[int]()
    for count, nbytes in zip(counts, sizes, strict=True):
        found = _read_section(payload[at : at + nbytes], count, codec)
        scales += found[0]
        q.append(found[1])
        found_feet += found[2]
        at += nbytes
    assert at == len(payload)
    return scales, np.concatenate(q), found_feet


def _read_section(section: bytes, n: int, codec: Ecsq) -> tuple[list[int], Whole, list[int]]:
    blocks, sizes = -(-n // codec.block), 4 if codec.foot else 3
    ends = np.cumsum([4 * sizes + blocks, *struct.unpack_from(f"<{sizes}I", section)])
    planes = [section[begin:end] for begin, end in pairwise([*ends, len(section)])]
    upper = decode_block(planes.pop(0), blocks)
    scales = [low + 256 * byte for low, byte in zip(section[4 * sizes :], upper, strict=False)]
    symbols = np.frombuffer(decode_block(planes[0], -(-n // 2), pairs=True), dtype=np.uint8)
    nibbles = np.stack([symbols & 15, symbols >> 4], axis=1).reshape(-1)
    assert not nibbles[n:].any()
    q = ((nibbles[:n].astype(np.int64) ^ 8) - 8).copy()
    far = q == -8
    low, high = (np.frombuffer(decode_block(plane, int(far.sum())), np.uint8) for plane in planes[1:3])
    escapes = low.astype(np.int64) | high.astype(np.int64) << 8
    q[far] = (8 + (escapes >> 1)) * np.where(escapes & 1, -1, 1)
    if not codec.foot:
        return scales, q, []
    has_feet = np.repeat([0x0880 <= scale < 0x7FC0 for scale in scales], codec.block)[:n]
    return scales, q, list(decode_block(planes[3], int(((q == 0) & has_feet).sum())))


def samples() -> list[torch.Tensor]:
    rng = np.random.default_rng(7)
    chunks = [rng.laplace(0.0, 1e-2, n) * 10.0 ** rng.integers(-3, 3, n) for n in (0, 1, 2, 33, 64, 65, 9001)]
    chunks += [np.full(50, 2.0**-140), np.full(50, 2.0**-120), np.full(50, 3.4e38), np.full(5, -0.0)]
    chunks += [np.where(np.arange(2000) == 1500, math.nan, 0.01), np.array([math.inf, 1.0])]
    chunks += [np.where(np.arange(4096) % 64 == 5, -1e3, 1e-3), np.where(np.arange(70000) == 9, 1.0, 0.0)]
    chunks += [np.concatenate([np.zeros(1 << 18), rng.normal(0.0, 1e-4, 301)])]
    return [torch.from_numpy(chunk.astype(np.float32)) for chunk in chunks]


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_payloads_are_those_of_the_formula(codec: Ecsq) -> None:
    for x in samples():
        scales, q, found = read(bytes(codec.encode(x).tolist()), x.numel(), codec)
        expected = quantised(x, codec)
        assert scales == expected[0]
        assert np.array_equal(q, expected[1])
        assert found == feet(x, codec)


@pytest.mark.parametrize("codec", SQUARE, ids=str)
def test_decoded_values_are_q_times_the_scale(codec: Ecsq, roundtrip: Roundtrip) -> None:
    for x in samples():
        scales, q = quantised(x, codec)
        halves = np.array(scales, dtype=np.uint32) << 16
        each = np.repeat(halves.view(np.float32), codec.block)[: x.numel()].astype(np.float64)
        largest = float(np.finfo(np.float32).max)
        expected = np.clip(q * each, -largest, largest)
        assert np.array_equal(roundtrip(codec, x).numpy().astype(np.float64), expected, equal_nan=True)


def place_of_codes(payload: bytes, n: int, codec: Ecsq) -> int:
    """Return where the codes of the first section begin, with their mode."""
    sizes = 4 * (4 if codec.foot else 3)
    counts = counts_of(n, codec)
    at = 4 * len(counts)
    scales = -(-counts[0] // codec.block)
    return at + sizes + scales + int.from_bytes(payload[at : at + 4], "little")


def test_golden_vectors_are_those_of_the_formula(golden: Golden) -> None:
    modes = set()
    for codec, x, payload in golden("ecsq"):
        assert isinstance(codec, Ecsq)
        modes.add(payload[place_of_codes(payload, x.numel(), codec)])
        scales, q, found = read(payload, x.numel(), codec)
        expected = quantised(x, codec)
        assert scales == expected[0]
        assert np.array_equal(q, expected[1])
        assert found == feet(x, codec)
    assert modes == {0, 1, 2, 3}


def test_codes_have_a_table_of_nibbles_unless_pairs_depend_on_each_other() -> None:
    codec, generator = Ecsq(0.5), torch.Generator().manual_seed(11)
    x = torch.randn(1 << 16, generator=generator)
    pairs = torch.randint(-7, 8, (1 << 15,), generator=generator).repeat_interleave(2).float()
    for values, count, mode in ((x, 8000, 3), (x, 1 << 16, 3), (pairs, 8000, 2), (x[:200], 200, 0)):
        payload = bytes(codec.encode(values[:count]).tolist())
        assert payload[place_of_codes(payload, count, codec)] == mode
        _, q, _ = read(payload, count, codec)
        assert np.array_equal(q, quantised(values[:count], codec)[1])


def test_a_table_of_bytes_is_none_of_nibbles() -> None:
    x = torch.randint(-7, 8, (4000,), generator=torch.Generator().manual_seed(5)).repeat_interleave(2).float()
    codec = Ecsq(0.5)
    payload = codec.encode(x)
    at = place_of_codes(bytes(payload.tolist()), 8000, codec)
    assert payload[at] == 2
    payload[at] = 3
    with pytest.raises(PayloadError, match="the table of a block is malformed"):
        codec.decode(payload, torch.empty(8000))


def test_a_table_of_nibbles_saves_what_one_of_pairs_takes() -> None:
    x = torch.randn(8000, generator=torch.Generator().manual_seed(11))
    payload = bytes(Ecsq(0.5).encode(x).tolist())
    _, q, _ = read(payload, 8000, Ecsq(0.5))
    shares = np.unique(np.clip(q, -8, 7), return_counts=True)[1] / 8000
    entropy_nbytes = -8000 * float((shares * np.log2(shares)).sum()) / 8
    assert len(payload) < entropy_nbytes + 128 + 100, "states of the coders, and the rest"


@pytest.mark.parametrize("step", [2**-5, 0.25, 4])
def test_feet_keep_small_values_within_a_fifth_and_change_no_others(
    step: float, roundtrip: Roundtrip
) -> None:
    x = torch.linspace(-3, 6, 1024 * 24).exp() * torch.tensor([1.0, -1.0]).repeat(1024 * 12)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(5))]
    plain, y = roundtrip(Ecsq(step), x), roundtrip(Ecsq(step, foot=True), x)
    zero = plain == 0
    assert zero.sum() > 100
    assert torch.equal(y[~zero], plain[~zero])
    error = (y[zero] - x[zero]).abs() / x[zero].abs()
    assert 0.19 < float(error.max()) <= 0.2 * (1 + 2**-20)


def test_feet_end_at_two_to_the_minus_16_of_the_scale(roundtrip: Roundtrip) -> None:
    codec = Ecsq(1, 64, foot=True)
    x = torch.zeros(64)
    x[0] = 8.0  # RMS 1, scale 0.99609375
    scale = 0.99609375
    x[1:5] = scale * 2.0**-16 * torch.tensor([0.87, -0.88, 1.2, 1.3])
    assert (roundtrip(codec, x)[1:6] / (scale * 2.0**-16)).tolist() == [0.0, -1.0, 1.0, 1.5, 0.0]


def test_decode_add_adds_feet_to_what_is_there() -> None:
    x = torch.linspace(-1, 1, 1001) ** 5
    codec = Ecsq(0.5, foot=True)
    payload, y, acc = codec.encode(x), torch.empty_like(x), torch.linspace(3, 4, 1001)
    expected = acc.clone()
    codec.decode(payload, y)
    codec.decode_add(payload, acc)
    assert torch.equal(acc, expected + y)


def test_a_foot_that_no_encoder_writes_is_refused() -> None:
    payload = Ecsq(0.5, foot=True).encode(torch.tensor([1.0, -1.0, 0.01, 0.0, 1.0]))
    assert payload[-3] == 0  # a raw block of two feet
    payload[-2] = 63
    out = torch.full((5,), 7.0)
    with pytest.raises(PayloadError, match="a foot is invalid"):
        Ecsq(0.5, foot=True).decode(payload, out)
    assert (out == 7.0).all()


def test_errors_reach_half_a_step_of_the_block_and_no_more(
    normal: torch.Tensor, roundtrip: Roundtrip
) -> None:
    x = (normal.view(-1, 1024) * torch.logspace(-6, 6, 1024)[:, None]).view(
        -1
    )  # blocks of very different scale
    for step in (2**-5, 0.5, 1.0):
        blocks, decoded = x.view(-1, 1024).double(), roundtrip(Ecsq(step), x).view(-1, 1024).double()
        allowed = 0.5 * step * blocks.square().mean(dim=1, keepdim=True).sqrt()
        error = (decoded - blocks).abs()
        assert (error <= allowed).all()
        assert float((error / allowed).max()) > 0.98


def test_an_outlier_keeps_the_bound(roundtrip: Roundtrip) -> None:
    x = torch.full((65536,), 1e-3)
    x[77] = -1e3
    codec = Ecsq(2**-5, 65536)
    assert 2**12 < 1e3 / (2 * codec.bound(x)) < 2**14
    assert float((roundtrip(codec, x)[77] - x[77]).abs()) <= codec.bound(x)


def test_the_largest_floats_stay_finite(roundtrip: Roundtrip) -> None:
    largest = torch.finfo(torch.float32).max
    for step in (0.4, 0.7, 4.0):
        for values in ([largest] * 64, [largest, -largest, 0.3 * largest] * 30):
            x = torch.tensor(values)
            y = roundtrip(Ecsq(step), x)
            assert y.isfinite().all()
            assert float((y.double() - x.double()).abs().max()) <= Ecsq(step).bound(x)


def test_a_block_with_a_nan_leaves_the_others_alone(roundtrip: Roundtrip) -> None:
    x = torch.linspace(-1, 1, 192)
    clean = roundtrip(Ecsq(0.5, 64), x)
    x[70] = math.nan
    y = roundtrip(Ecsq(0.5, 64), x)
    assert y[64:128].isnan().all()
    assert torch.equal(y[:64], clean[:64])
    assert torch.equal(y[128:], clean[128:])


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (18, 0x80, "a scale is invalid"),
        (18, 0x7F, "a scale is invalid"),  # another NaN
        (17, 3, "unknown mode"),  # bytes have no table of nibbles
        (22, 0x10, "the unused half of its last code"),
        (22, 0x08, "raw block has a different number"),  # an escape that is not there
        (19, 3, "the table of a block is malformed"),
        (19, 4, "unknown mode"),
        (4, 5, "do not add up"),
        (4, 1, "unknown mode"),  # codes that begin a byte too early
        (12, 0, "a block is empty"),
        (0, 20, "its section sizes do not add up"),
    ],
)
def test_what_no_encoder_writes_is_refused(at: int, byte: int, reason: str) -> None:
    payload = Ecsq(0.5).encode(torch.tensor([1.0, -1.0, 0.25, 0.0, 1.0]))
    payload[at] = byte
    out = torch.full((5,), 7.0)
    with pytest.raises(PayloadError, match=reason):
        Ecsq(0.5).decode(payload, out)
    assert (out == 7.0).all()


@pytest.mark.parametrize(
    ("spec", "of_laplace", "of_normal"),
    [("ecsq:0.5", 10.6, 10.3), ("ecsq:1", 15.6, 14.9), ("ecsq:0.25,foot", 6.82, 7.07)],
)
def test_ratios(
    spec: str, of_laplace: float, of_normal: float, laplace: torch.Tensor, normal: torch.Tensor
) -> None:
    for x, ratio in ((laplace, of_laplace), (normal, of_normal)):
        assert 4 * x.numel() / parse(spec).encode(x).numel() == pytest.approx(ratio, abs=0.06)


def test_noise_costs_no_more_than_the_card_says() -> None:
    x = torch.from_numpy(np.random.default_rng(3).choice([-1.0, 1.0], 1 << 17).astype(np.float32))
    x *= torch.from_numpy(np.random.default_rng(4).uniform(0.5, 200.0, 1 << 17).astype(np.float32))
    codec = Ecsq(2**-5)
    assert codec.max_nbytes(1 << 17) == 2.5 * 2**17 + 2 * 128 + 2 * 20
    assert codec.encode(x).numel() < codec.max_nbytes(1 << 17)
    assert Ecsq(2**-5, foot=True).max_nbytes(1 << 17) == codec.max_nbytes(1 << 17) + 2 * 5


def test_finished_sums_have_a_step_of_their_own_and_one_codec_decodes_both() -> None:
    codec, x = parse("ecsq:0.5,foot,sum=0.25"), torch.randn(5000)
    assert (str(codec), codec.of_sums) == ("ecsq:0.5,foot,sum=0.25", Ecsq(0.25, foot=True))
    assert torch.equal(codec.encode(x), Ecsq(0.5, foot=True).encode(x))
    decoded, expected = torch.empty_like(x), torch.empty_like(x)
    codec.decode(codec.of_sums.encode(x), decoded)
    codec.of_sums.decode(codec.of_sums.encode(x), expected)
    assert torch.equal(decoded, expected)
    assert codec.bound(x) == Ecsq(0.5).bound(x) > codec.of_sums.bound(x)
    assert Ecsq(0.5).of_sums == Ecsq(0.5)
    assert codec.fingerprint != Ecsq(0.5, foot=True).fingerprint, "ranks must agree"


@pytest.mark.parametrize("of_sums", ["0.6", "0.03", "nan", "much"])
def test_a_step_for_sums_that_is_larger_or_none_is_refused(of_sums: str) -> None:
    with pytest.raises(SpecError, match=r"ecsq: expected a step for sums from 2\^-5 to the first step"):
        parse(f"ecsq:0.5,sum={of_sums}")
