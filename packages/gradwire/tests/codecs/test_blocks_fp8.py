"""Floats of 8 bits against a table of their values in double precision, and against torch's own E4M3."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import _native
from gradwire.codecs import Codec, Fp8, Quantize
from gradwire.errors import PayloadError
from support.cases import for_each

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]
Doubles = npt.NDArray[np.float64]

QUIET_NAN = 0x7FC00000
TINY = 2.0**-95
"""A block below it is sent as zeros."""
GRID = np.array(
    [m / 8 * 2.0**-6 for m in range(8)] + [(1 + i % 8 / 8) * 2.0 ** (i // 8 - 6) for i in range(120)]
)
"""What a code without its sign means: multiples of 2^-9 below 2^-6, from there eighths of each binade."""


def rows(x: torch.Tensor, block: int) -> Doubles:
    """Return a row for each block; the last is filled up with zeros."""
    values = np.zeros(-(-x.numel() // block) * block)
    values[: x.numel()] = x.double().numpy()
    return values.reshape(-1, block)


def binades(blocks: Doubles) -> npt.NDArray[np.int64]:
    """Return floor(log2) of the largest magnitude of each block, one a row; of a block without one, 128."""
    largest = np.abs(blocks).max(axis=1, keepdims=True, initial=0.0)
    return np.where(np.isfinite(largest), np.frexp(largest)[1] - 1, 128).astype(np.int64)


def encode(x: torch.Tensor, codec: Fp8) -> bytes:
    """All exponents, then all codes."""
    blocks = rows(x, codec.block)
    binade = binades(blocks)
    blank = (binade == 128) | (np.abs(blocks).max(axis=1, keepdims=True, initial=0.0) < TINY)
    exponents = np.where(binade == 128, 255, np.where(blank, 0, binade + 127))
    scaled = np.ldexp(np.where(blank, 0.0, np.abs(blocks)), 7 - binade)  # the largest within 128..256
    unit = np.ldexp(1.0, np.maximum(np.frexp(scaled)[1] - 1 - 3, -9))
    rounded = np.minimum(np.rint(scaled / unit) * unit, np.where(binade == 127, 240.0, 256.0))
    codes = np.searchsorted(GRID, rounded)
    assert np.array_equal(GRID[codes], rounded)
    codes += np.where(np.signbit(blocks) & ~blank, 128, 0)
    return bytes(exponents.astype(np.uint8)) + bytes(codes.reshape(-1)[: x.numel()].astype(np.uint8))


def decode(payload: bytes, n: int, codec: Fp8) -> npt.NDArray[np.uint32]:
    """Return the bits of all values."""
    many = -(-n // codec.block)
    exponents = np.repeat(np.frombuffer(payload[:many], np.uint8), codec.block)[:n].astype(np.int64)
    codes = np.frombuffer(payload[many:], np.uint8)
    with np.errstate(over="ignore"):
        values = np.ldexp(np.where(codes >> 7, -GRID[codes & 127], GRID[codes & 127]), exponents - 134)
        bits = values.astype(np.float32).view(np.uint32)
    return np.where(exponents == 0, 0, np.where(exponents == 255, QUIET_NAN, bits)).astype(np.uint32)


def bits_of(x: torch.Tensor) -> npt.NDArray[np.uint32]:
    return x.numpy().view(np.uint32)


def from_bytes(payload: bytes) -> torch.Tensor:
    return torch.tensor(list(payload), dtype=torch.uint8)


def decoded(payload: bytes, n: int, codec: Fp8) -> torch.Tensor:
    out = torch.full((n,), 7.0)
    codec.decode(from_bytes(payload), out)
    return out


def check(x: torch.Tensor, codec: Fp8) -> torch.Tensor:
    """Every byte and every bit is the model's, every error within its bound; return what came back."""
    payload = encode(x, codec)
    assert bytes(codec.encode(x).tolist()) == payload
    y = decoded(payload, x.numel(), codec)
    assert np.array_equal(bits_of(y), decode(payload, x.numel(), codec))
    blocks, back = rows(x, codec.block), rows(y, codec.block)
    binade = binades(blocks)
    assert np.isnan(y.numpy()).tolist() == np.repeat(binade == 128, codec.block)[: x.numel()].tolist()
    finite, back = blocks[binade[:, 0] != 128], back[binade[:, 0] != 128]
    error = np.abs(back - finite)
    assert (error <= codec.bound(x)).all()
    kept = np.abs(finite).max(axis=1, initial=0.0) >= TINY
    assert not back[~kept].any()
    allowed = np.maximum(np.abs(finite) / 16, np.ldexp(1.0, binades(finite) - 17))
    assert (error <= allowed)[kept].all()
    assert np.array_equal(np.signbit(back)[kept], np.signbit(finite)[kept])
    return y


CODECS = [Fp8(), Fp8(16), Fp8(48), Fp8(1024), Fp8(65536)]
LENGTHS = (0, 1, 2, 15, 16, 17, 47, 49, 255, 256, 257, 4095, 4096, 4097, 9001)


def samples() -> list[torch.Tensor]:
    rng = np.random.default_rng(8)
    chunks = [rng.laplace(0.0, 1e-2, n) * 10.0 ** rng.integers(-6, 6, n) for n in LENGTHS]
    chunks += [np.full(50, value) for value in (2.0**-96, 2.0**-95, 2.0**-94, 3.4e38, 0.0, -0.0, 1e-40)]
    chunks += [np.where(np.arange(2000) == 1500, bad, 0.01) for bad in (math.nan, math.inf, -math.inf)]
    chunks += [
        sign * np.ldexp(np.arange(1, 512), k) for k in (-9, -10, -140, 0, 118, 119) for sign in (1, -1)
    ]
    chunks += [
        np.append(np.arange(-8, 8.25, 1 / 8) * 2.0**-9 * scale, 255 * scale) for scale in (1, 2.0**-80)
    ]
    return [torch.from_numpy(chunk.astype(np.float32)) for chunk in chunks]


@pytest.mark.parametrize("target", _native.available_targets())
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_payloads_and_values_are_those_of_the_model(codec: Fp8, target: str) -> None:
    with _native.use_target(target):
        for x in samples():
            check(x, codec)


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_long_chunks_are_those_of_the_model(
    codec: Fp8, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", threads)
    n = 400_003
    rng = np.random.default_rng(9)
    x = np.ldexp(rng.normal(size=n), np.repeat(rng.integers(-130, 120, n // 1000 + 1), 1000)[:n])
    check(torch.from_numpy(x.astype(np.float32)), codec)


def test_golden_vectors_are_those_of_the_model(golden: Golden) -> None:
    for codec, x, payload in golden("fp8"):
        assert isinstance(codec, Fp8)
        assert encode(x, codec) == payload


@st.composite
def chunks(draw: st.DrawFn) -> torch.Tensor:
    """Up to five blocks of 16 values, each around a size of its own, in which any bits may turn up."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    exponents = np.array(draw(st.lists(st.integers(-145, 127), max_size=5)), dtype=np.int64)
    n = max(16 * len(exponents) - draw(st.integers(0, 15)), 0)
    spread = rng.integers(-draw(st.integers(0, 30)) - 1, 1, n)
    x = np.ldexp(rng.uniform(-1, 1, n), np.repeat(exponents, 16)[:n] + spread).astype(np.float32)
    if n:
        guests = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 2**32 - 1)), max_size=3))
        for at, bits in guests:
            x.view(np.uint32)[at] = bits
    return torch.from_numpy(x)


@given(x=chunks(), block=st.sampled_from([16, 32, 256]))
def test_blocks_of_any_sizes_are_those_of_the_model(x: torch.Tensor, block: int) -> None:
    check(x, Fp8(block))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
def test_any_finite_values_are_those_of_the_model(values: list[float]) -> None:
    y = check(torch.tensor(values, dtype=torch.float32), Fp8(16))
    assert y.isfinite().all()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_any_bit_patterns_are_those_of_the_model(patterns: list[int]) -> None:
    check(torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32)), Fp8(16))


@given(x=chunks())
def test_encoding_again_gives_the_same_bytes_unless_the_largest_was_rounded_up_to_a_power_of_two(
    x: torch.Tensor,
) -> None:
    codec = Fp8(16)
    payload = bytes(codec.encode(x).tolist())
    many = -(-x.numel() // codec.block)
    y = decoded(payload, x.numel(), codec)
    again = bytes(codec.encode(y).tolist())
    z = decoded(again, x.numel(), codec)
    for i in range(many):
        codes = payload[many + 16 * i :][:16]
        if 0x78 in (code & 0x7F for code in codes):  # the largest became a power of two: the next exponent
            assert again[i] == payload[i] + 1
            before, after = y[16 * i :][:16], z[16 * i :][:16]
            kept = before.abs() >= 2.0**-13 * before.abs().max()
            assert torch.equal(after[kept], before[kept])
        else:
            assert again[i] == payload[i]
            assert again[many + 16 * i :][:16] == codes
    assert bytes(codec.encode(z).tolist()) == again


def test_a_largest_value_that_rounds_up_is_a_power_of_two_and_stays_one(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0.99, 0.5, -0.25])
    codec = Fp8()
    assert codec.encode(x).tolist() == [126, 0x78, 0x70, 0x80 | 0x68]
    y = roundtrip(codec, x)
    assert y.tolist() == [1.0, 0.5, -0.25]
    assert codec.encode(y).tolist() == [127, 0x70, 0x68, 0x80 | 0x60]
    assert torch.equal(roundtrip(codec, y), y)


@pytest.mark.parametrize("exponent", [32, 100, 134, 200, 253])
def test_every_code_decodes_to_its_value(exponent: int) -> None:
    payload = bytes([exponent]) + bytes(range(256))
    y = decoded(payload, 256, Fp8())
    assert np.array_equal(bits_of(y), decode(payload, 256, Fp8()))
    assert torch.equal(y[128:], -y[:128])
    assert bool(y[128].signbit())
    if exponent == 134:
        assert y[[1, 7, 8, 9, 0x38, 0x77, 0x78]].tolist() == [
            *(2.0**-9, 7 * 2.0**-9, 2.0**-6, 9 * 2.0**-9, 1.0, 240.0, 256.0)
        ]


def test_the_values_are_those_of_e4m3() -> None:
    codes = torch.arange(0x7F, dtype=torch.uint8)  # 0x7F is a NaN there
    theirs = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(decoded(bytes([134, *range(0x7F)]), 0x7F, Fp8()), theirs)


def test_rounding_is_that_of_torch() -> None:
    rng = np.random.default_rng(4)
    x = torch.from_numpy((rng.uniform(-1, 1, 4095) * 2.0 ** rng.integers(-20, 9, 4095)).astype(np.float32))
    ties = torch.arange(-4096, 4096) * 2.0**-11
    for values in (x, ties, ties * 16, ties * 64):
        chunk = torch.cat([values.clamp(-255.9, 255.9), torch.tensor([200.0])])
        payload = Fp8(65536).encode(chunk)
        assert payload[0] == 134
        assert torch.equal(payload[1:], chunk.to(torch.float8_e4m3fn).view(torch.uint8))


def test_halves_go_to_the_even_neighbour() -> None:
    eighths = [17, 19, 21, 23, 25, 27, 29, 31]  # sixteenths: each between two codes
    x = torch.tensor([128.0] + [each / 16 for each in eighths] + [k * 2.0**-10 for k in (1, 3, 5, 13, 15)])
    codes = [0x70, 0x38, 0x3A, 0x3A, 0x3C, 0x3C, 0x3E, 0x3E, 0x40, 0, 2, 2, 6, 8]
    assert Fp8().encode(x).tolist() == [134, *codes]


@for_each("exponent", range(256))
def test_any_exponent_decodes_or_is_refused(exponent: int) -> None:
    payload = bytes([134, exponent, 134, *([0x38] * 16), *range(0x70, 0x80), *range(0xF0, 0xF8)])
    codec, out = Fp8(16), torch.full((40,), 7.0)
    if 1 <= exponent <= 31:
        for read in (codec.decode, codec.decode_add):
            with pytest.raises(PayloadError, match=r"an exponent byte is in the invalid range 1\.\.31"):
                read(from_bytes(payload), out)
            assert (out == 7.0).all()
    else:
        codec.decode(from_bytes(payload), out)
        assert np.array_equal(bits_of(out), decode(payload, 40, codec))


@pytest.mark.parametrize("target", _native.available_targets())
def test_a_bad_exponent_in_the_last_of_many_blocks_is_refused_before_anything_is_written(target: str) -> None:
    codec, n = Fp8(), 300_000
    payload = codec.encode(torch.ones(n))
    payload[-(-n // 256) - 1] = 31
    out = torch.full((n,), 7.0)
    with _native.use_target(target):
        for read in (codec.decode, codec.decode_add):
            with pytest.raises(PayloadError, match=r"an exponent byte is in the invalid range 1\.\.31"):
                read(payload, out)
            assert (out == 7.0).all()


@pytest.mark.parametrize("codec", [Fp8(), Fp8(16)], ids=str)
@for_each("n", [0, 1, 16, 17, 256, 257])
def test_a_wrong_length_is_refused(codec: Fp8, n: int) -> None:
    payload = codec.encode(torch.ones(n))
    for wrong in (torch.cat([payload, payload.new_zeros(1)]), *([payload[:-1], payload[:0]] if n else [])):
        out = torch.full((n,), 7.0)
        for read in (codec.decode, codec.decode_add):
            with pytest.raises(PayloadError, match="its length does not match"):
                read(wrong, out)
            assert (out == 7.0).all()


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_length_is_a_byte_a_value_and_one_a_block(codec: Fp8) -> None:
    for n in (*LENGTHS, 65536, 65537, 70_000):
        assert codec.max_nbytes(n) == n + -(-n // codec.block)
        assert codec.encode(torch.ones(n)).numel() == codec.max_nbytes(n)


def test_codes_beside_a_mark_are_not_looked_at() -> None:
    y = decoded(bytes([0, 255, *range(0x70, 0x80), *range(0xF0, 0x100)]), 32, Fp8(16))
    assert bits_of(y).tolist() == [0] * 16 + [QUIET_NAN] * 16


def test_codes_that_no_encoder_makes_may_decode_to_infinity() -> None:
    codes = [0x77, 0x78, 0x7F, 0xF7, 0xF8, 0xFF]
    assert decoded(bytes([254, *codes]), 6, Fp8()).tolist() == [
        *(1.875 * 2.0**127, math.inf, math.inf, -1.875 * 2.0**127, -math.inf, -math.inf)
    ]


def test_the_sign_of_a_zero_is_kept_where_its_block_is_not_zero(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, -1e-30])
    y = roundtrip(Fp8(), x)
    assert y.signbit().tolist() == [False, True, False, True, False, True]
    assert torch.equal(y, torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0]))
    assert not roundtrip(Fp8(), torch.full((5,), -0.0)).signbit().any()
    assert not roundtrip(Fp8(), torch.full((5,), -(2.0**-96))).signbit().any()


def test_a_block_becomes_zero_below_its_limit_and_not_above(roundtrip: Roundtrip) -> None:
    below = torch.tensor([0.9999999 * TINY, -1e-45, 1e-40])
    assert Fp8().encode(below).tolist() == [0, 0, 0, 0]
    assert not roundtrip(Fp8(), below).any()
    at = torch.tensor([TINY, -TINY / 2])
    assert Fp8().encode(at).tolist() == [32, 0x70, 0xE8]
    assert torch.equal(roundtrip(Fp8(), at), at)


def test_the_largest_floats_saturate_and_stay_finite(roundtrip: Roundtrip) -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([largest, -largest, 3e38, 2.0**127, 2.0**126 * 1.99])
    y = roundtrip(Fp8(), x)
    assert Fp8().encode(x).tolist()[:3] == [254, 0x77, 0xF7]
    assert y.tolist() == [*(side * 1.875 * 2.0**127 for side in (1, -1)), 1.75 * 2.0**127, 2.0**127, 2.0**127]
    codec = Fp8()
    error = float((y.double() - x.double()).abs().max())
    assert 0.99 * codec.bound(x) < error <= codec.bound(x) == 2.0**124 + TINY


def test_only_the_block_with_a_nan_is_lost(roundtrip: Roundtrip) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(40)
        x[20] = bad
        assert Fp8(16).encode(x).tolist() == [127, 255, 127] + [0x70] * 16 + [0] * 16 + [0x70] * 8
        y = roundtrip(Fp8(16), x)
        assert bits_of(y[16:32]).tolist() == [QUIET_NAN] * 16
        assert torch.equal(y[:16], torch.ones(16))
        assert torch.equal(y[32:], torch.ones(8))


def test_the_bound_is_a_sixteenth_of_the_largest_binade(roundtrip: Roundtrip) -> None:
    codec = Fp8()
    assert codec.bound(torch.empty(0)) == codec.bound(torch.zeros(9)) == 0.0
    assert codec.bound(torch.full((3,), math.nan)) == 0.0
    assert codec.bound(torch.tensor([-1.9, 0.1, math.inf])) == 2.0**-4 + TINY
    assert codec.bound(torch.tensor([2.0**126])) == 2.0**122 + TINY
    assert codec.bound(torch.tensor([2.0**-96])) == 2.0**-100 + TINY
    x = torch.tensor([1.0625])  # half way between 1 and 1.125
    assert abs(float(roundtrip(codec, x) - x)) == 2.0**-4


def test_errors_are_a_share_of_each_value(laplace: torch.Tensor, roundtrip: Roundtrip) -> None:
    y = roundtrip(Fp8(), laplace)
    share = ((y - laplace).double() / laplace.double()).abs()
    kept = laplace.abs() > laplace.abs().max() * 2.0**-12
    assert 0.055 < float(share[kept].max()) <= 1 / 16
    error = (y - laplace).double()
    assert abs(error.mean()) <= 5 * error.std() / math.sqrt(error.numel()), "rounding leans to one side"


def test_a_small_value_beside_a_large_one_is_kept_where_quantize_loses_it(roundtrip: Roundtrip) -> None:
    for block in (16, 256, 1024):
        x = torch.where(torch.arange(block) % 2 == 0, 1e-3, -1.0)
        y = roundtrip(Fp8(block), x)
        assert ((y - x).abs() <= x.abs() / 16).all()
        lossy = roundtrip(Quantize(8, block), x)
        assert not lossy[::2].any()
        assert lossy[1::2].all()


def test_values_over_seventeen_binades_keep_something(roundtrip: Roundtrip) -> None:
    x = 2.0 ** -torch.arange(20.0)
    assert torch.equal(roundtrip(Fp8(), x), torch.where(torch.arange(20) <= 16, x, 0.0))


def test_ratio(laplace: torch.Tensor) -> None:
    for codec in (Fp8(), Fp8(16), Fp8(1024)):
        ratio = 4 * laplace.numel() / codec.encode(laplace).numel()
        assert ratio == pytest.approx(4 * codec.block / (codec.block + 1))
    assert 4 * laplace.numel() / Fp8().encode(laplace).numel() == pytest.approx(3.98, abs=0.01)
