"""The fixed-length formats: every target and thread count against NumPy, written from their text."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import _native
from gradwire.errors import PayloadError

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Format = tuple[str, tuple[int, ...]]

TARGETS = _native.available_targets()
FORMATS: list[Format] = [
    *(("pack", (bits,)) for bits in (1, 2, 7, 8, 9, 10, 16, 20, 24, 31, 32)),
    *(("quantize", (bits, block)) for bits in (8, 4) for block in (16, 48, 1024, 65536)),
    *(("bfp", (mantissa, 16)) for mantissa in (1, 3, 7, 8, 11, 15)),
    *(("bfp", params) for params in ((7, 8), (7, 24), (7, 64), (7, 1024), (4, 8))),
    *(("fp8", (block,)) for block in (16, 48, 256, 65536)),
    ("fp16", ()),
    ("bf16", ()),
    ("terngrad", (0, 0)),
    ("terngrad", (-3, 9)),
]
LARGE: list[Format] = [
    ("pack", (8,)), ("pack", (10,)), ("pack", (24,)), ("quantize", (8, 1024)), ("quantize", (4, 48)),
    ("bfp", (7, 16)), ("bfp", (5, 24)), ("fp8", (48,)), ("fp16", ()), ("bf16", ()), ("terngrad", (1, 2)),
]  # fmt: skip
NAN = np.uint32(0x7FC00000).view(np.float32)


# References: bits as arrays of zeros and ones, values in double precision.


def to_bits(words: npt.NDArray[Any], width: int) -> Bytes:
    """Little-endian bits of the low ``width`` bits of each word, packed into bytes."""
    rows = np.unpackbits(words.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(rows[:, :width].reshape(-1), bitorder="little")


def from_bits(packed: Bytes, count: int, width: int) -> npt.NDArray[np.int64]:
    rows = np.unpackbits(packed, bitorder="little")[: count * width].reshape(count, width)
    words: npt.NDArray[np.int64] = (rows.astype(np.int64) << np.arange(width)).sum(axis=1)
    return words


def signed(words: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    return np.where(words >> (width - 1) == 1, words - (1 << width), words)


def encode_pack(x: Floats, bits: int) -> Bytes:
    body = to_bits(x.view(np.uint32) >> np.uint32(32 - bits), bits)
    marker = [] if bits > 8 else [int(not np.isfinite(x).all())]
    return np.concatenate([body, np.array(marker, np.uint8)])


def decode_pack(payload: Bytes, n: int, bits: int) -> Floats:
    if bits <= 8 and payload[-1] == 1:
        return np.full(n, NAN)
    return (from_bits(payload, n, bits) << (32 - bits)).astype(np.uint32).view(np.float32)


def encode_quantize(x: Floats, bits: int, block: int) -> Bytes:
    limit = 127 if bits == 8 else 7
    scales, codes = [], []
    for part in (x[i : i + block] for i in range(0, len(x), block)):
        largest = np.abs(part).max()
        scale = np.float32(0)
        q = np.zeros(len(part), np.int64)
        if not np.isfinite(part).all():
            scale = NAN
        elif largest >= 2.0**-100:
            scale = ((largest / np.float32(limit)).view(np.uint32) & np.uint32(0xFFFFFF00)).view(np.float32)
            q = np.rint(part * (np.float32(1) / scale)).astype(np.int64)
            assert np.abs(q).max() <= limit
        scales.append(scale)
        codes.append(q)
    body = to_bits(np.concatenate([*codes, np.zeros(0, np.int64)]) & 0xFF, bits)
    return np.concatenate([np.array(scales, np.float32).view(np.uint8), body])


def decode_quantize(payload: Bytes, n: int, bits: int, block: int) -> Floats:
    blocks = -(-n // block)
    scales = np.repeat(payload[: 4 * blocks].view(np.float32), block)[:n].astype(np.float64)
    return (signed(from_bits(payload[4 * blocks :], n, bits), bits) * scales).astype(np.float32)


def encode_bfp(x: Floats, mantissa: int, block: int) -> Bytes:
    padded = np.zeros(-(-len(x) // block) * block, np.float32)
    padded[: len(x)] = x
    records = []
    for part in padded.reshape(-1, block):
        finite = bool(np.isfinite(part).all())
        exponent = int(np.frexp(np.abs(part).max())[1]) + 126 if finite else 255
        exponent = exponent if exponent >= 32 and part.any() else 0
        q = np.zeros(block)
        if 0 < exponent < 255:
            q = np.rint(part.astype(np.float64) * 2.0 ** (mantissa - 1 + 127 - exponent))
        q = np.clip(q, -(2**mantissa) + 1, 2**mantissa - 1).astype(np.int64) & (2 ** (mantissa + 1) - 1)
        records.append(np.concatenate([np.array([exponent], np.uint8), to_bits(q, mantissa + 1)]))
    return np.concatenate([*records, np.zeros(0, np.uint8)])


def decode_bfp(payload: Bytes, n: int, mantissa: int, block: int) -> Floats:
    out = []
    for record in payload.reshape(-1, 1 + block * (mantissa + 1) // 8):
        exponent = int(record[0])
        unit = {0: 0.0, 255: np.nan}.get(exponent, 2.0 ** (exponent - 127 - (mantissa - 1)))
        out.append(signed(from_bits(record[1:], block, mantissa + 1), mantissa + 1) * unit)
    return np.concatenate([*out, np.zeros(0)])[:n].astype(np.float32)


CODE = np.arange(128)
FP8 = np.where(CODE < 8, CODE * 2.0**-9, (8 + CODE % 8) * 2.0 ** (CODE // 8 - 10.0))
"""The numbers of the magnitudes."""


def encode_fp8(x: Floats, block: int) -> Bytes:
    exponents: list[int] = []
    codes: list[Bytes] = [np.zeros(0, np.uint8)]
    for part in (x[i : i + block] for i in range(0, len(x), block)):
        exponent = int(np.abs(part).view(np.uint32).max() >> 23)
        exponents.append(exponent if exponent >= 32 else 0)
        scaled = np.abs(part).astype(np.float64) * 2.0 ** (134 - exponent)
        nearest = np.searchsorted((FP8[:-1] + FP8[1:]) / 2, scaled)  # of two as near the smaller
        nearest += (nearest % 2 == 1) & (
            np.append(FP8, 0)[nearest] + np.append(FP8, 0)[nearest + 1] == 2 * scaled
        )
        magnitudes = np.minimum(nearest, 119 if exponent == 254 else 120)
        codes.append((np.signbit(part) * 128 + magnitudes).astype(np.uint8))
        codes[-1] *= exponents[-1] not in (0, 255)
    return np.concatenate([np.array(exponents, np.uint8), *codes])


def decode_fp8(payload: Bytes, n: int, block: int) -> Floats:
    exponents = np.repeat(payload[: -(-n // block)], block)[:n].astype(np.float64)
    codes = payload[len(payload) - n :]
    values = np.where(codes >> 7, -1.0, 1.0) * FP8[codes & 0x7F] * 2.0 ** (exponents - 134)
    return np.select([exponents == 0, exponents == 255], [0.0, np.nan], values).astype(np.float32)


def encode_cast(x: Floats, kept: int, quiet: int, finite: npt.NDArray[Any]) -> Bytes:
    """Halves of numbers come from another library; a NaN keeps its top bits and becomes quiet."""
    bits = x.view(np.uint32)
    ones = (0xFFFF >> 1) ^ ((1 << kept) - 1)
    nan = (bits >> 16 & 0x8000) | ones | quiet | (bits >> (23 - kept) & ((1 << kept) - 1))
    return np.where(np.isnan(x), nan, finite).astype("<u2").view(np.uint8)


def encode_terngrad(x: Floats, low: int, high: int) -> Bytes:
    largest = np.abs(x).max(initial=0)
    codes = np.zeros(len(x), np.int64)
    if not np.isfinite(x).all():
        largest = NAN
    elif largest > 0:
        crc = _native.crc32c(torch.from_numpy(x.view(np.uint8).copy()))
        key = ((low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32) ^ crc
        z = np.uint64(key) + np.arange(1, len(x) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        chance = ((z ^ z >> np.uint64(31)) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        codes = np.where(chance < np.abs(x) / largest, 1 + (x.view(np.uint32) >> 31).astype(np.int64), 0)
    return np.concatenate([np.array([largest], np.float32).view(np.uint8), to_bits(codes, 2)])


def decode_terngrad(payload: Bytes, n: int) -> Floats:
    scale = payload[:4].view(np.float32)[0]
    factors = np.array([0.0, 1.0, -1.0], np.float32)[from_bits(payload[4:], n, 2)]
    return np.full(n, NAN) if np.isnan(scale) else np.asarray(factors * scale, np.float32)


def reference_encode(x: Floats, form: Format) -> Bytes:
    name, params = form
    with np.errstate(all="ignore"):
        if name == "fp16":
            return encode_cast(x, 10, 0x200, x.astype(np.float16).view(np.uint16))
        if name == "bf16":
            halves = torch.from_numpy(x.copy()).to(torch.bfloat16).view(torch.int16).numpy()
            return encode_cast(x, 7, 0x40, halves.view(np.uint16))
        encoders = {"pack": encode_pack, "quantize": encode_quantize, "bfp": encode_bfp, "fp8": encode_fp8}
        return {**encoders, "terngrad": encode_terngrad}[name](x, *params)  # type: ignore[operator,no-any-return]


def reference_decode(payload: Bytes, n: int, form: Format) -> Floats:
    name, params = form
    with np.errstate(all="ignore"):
        if name == "fp16":
            return payload.view(np.float16).astype(np.float32)
        if name == "bf16":
            return (payload.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        if name == "terngrad":
            return decode_terngrad(payload, n)
        decoders = {"pack": decode_pack, "quantize": decode_quantize, "bfp": decode_bfp, "fp8": decode_fp8}
        return decoders[name](payload, n, *params)  # type: ignore[operator,no-any-return]


# Inputs and calls.


def chunks(n: int, seed: int) -> Iterator[Floats]:
    """Bit patterns, gradients, ties, values near the largest float, tiny blocks, everything with NaN."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal(n)
    yield random.integers(0, 2**32, n).astype(np.uint32).view(np.float32)
    yield (normal * 1e-3).astype(np.float32)
    yield (random.integers(-256, 257, n) * 0.5 * 2.0 ** float(random.integers(-60, 60))).astype(np.float32)
    yield (np.finfo(np.float32).max * random.choice([1, -1, 0.5, 0.999], n)).astype(np.float32)
    yield (normal * 2.0 ** random.integers(-149, -90, n)).astype(np.float32)
    yield random.choice(np.array([0, -0.0, 1e-45, 1e-38, 1, -1, 3e38], np.float32), n)
    mixed = (normal * 2.0 ** random.integers(-140, 120, n)).astype(np.float32)
    mixed[random.random(n) < 0.01] = random.choice(np.array([np.nan, np.inf, -np.inf], np.float32))
    yield mixed


def encode(x: Floats, form: Format, offset: int = 0) -> Bytes:
    """Encode into memory at any address, and check that nothing outside the capacity is written."""
    name, params = form
    capacity = _native.max_nbytes(name, len(x), params)
    memory = torch.full((offset + capacity + 64,), 0xA5, dtype=torch.uint8)
    nbytes = _native.encode(name, torch.from_numpy(x), memory[offset : offset + capacity], params)
    assert nbytes <= capacity
    assert (memory[:offset] == 0xA5).all()
    assert (memory[offset + capacity :] == 0xA5).all()
    return memory[offset : offset + nbytes].numpy().copy()


def decode(payload: Bytes, n: int, form: Format, offset: int = 0) -> Floats:
    memory = torch.full((offset + n + 16,), 7.0)
    _native.decode(form[0], torch.from_numpy(payload), memory[offset : offset + n], form[1])
    assert (memory[:offset] == 7).all()
    assert (memory[offset + n :] == 7).all()
    return memory[offset : offset + n].numpy().copy()


def same_numbers(a: Floats, b: Floats) -> bool:
    """Equal bits, except that one NaN is as good as another."""
    return bool(np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(bits_of(a), bits_of(b)))


def bits_of(x: Floats) -> npt.NDArray[np.uint32]:
    return np.where(np.isnan(x), NAN, x).view(np.uint32)


def check(x: Floats, form: Format, offset: int, *threads: str) -> None:
    expected = reference_encode(x, form)
    expected_values = reference_decode(expected, len(x), form)
    values: Floats | None = None
    for target, many in itertools.product(TARGETS, threads or ("",)):
        chosen, where = {"GRADWIRE_THREADS": many} if many else {}, (target, form, len(x), many)
        with _native.use_target(target), patch.dict(os.environ, chosen):
            payload = encode(x, form, offset)
            assert payload.tobytes() == expected.tobytes(), where
            decoded = decode(payload, len(x), form, offset)
            assert same_numbers(decoded, expected_values), where
            values = decoded if values is None else values
            assert decoded.tobytes() == values.tobytes(), f"{where}: targets differ in the bits of a NaN"
            total = torch.full((len(x),), 0.37)
            _native.decode_add(form[0], torch.from_numpy(payload), total, form[1])
            with np.errstate(all="ignore"):
                assert total.numpy().tobytes() == (np.float32(0.37) + decoded).tobytes(), where
    assert values is not None
    assert not np.isfinite(values[~np.isfinite(x)]).any()


# Tests.


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_every_target_gives_the_reference_bytes_and_numbers(form: Format) -> None:
    for n in [*range(70), 95, 96, 97, 127, 128, 129, 200, 1500]:
        for x in itertools.islice(chunks(n, n), n % 3, None, 3):  # each length tries a third of the kinds
            check(x, form, offset=n % 5)


@pytest.mark.parametrize("form", LARGE, ids=str)
def test_threads_do_not_change_a_bit(form: Format) -> None:
    x = np.random.default_rng(3).laplace(0, 1e-3, 400_003).astype(np.float32)
    check(x, form, 1, "1", "2", "3")


@pytest.mark.parametrize("bits", range(1, 33))
def test_pack_never_makes_a_nonfinite_value_finite_and_truncates_towards_zero(bits: int) -> None:
    x = np.concatenate([*chunks(300, bits)])
    for target in TARGETS:
        with _native.use_target(target):
            for special in (np.uint32(0x7F800001), np.uint32(0xFF800000), np.uint32(0x7FC00000)):
                x[17] = special.view(np.float32)
                kept = decode(encode(x, ("pack", (bits,))), len(x), ("pack", (bits,)))
                assert not np.isfinite(kept[~np.isfinite(x)]).any()
            finite = x[np.isfinite(x)]
            kept = decode(encode(finite, ("pack", (bits,))), len(finite), ("pack", (bits,)))
            assert (np.abs(kept) <= np.abs(finite)).all()
            assert np.array_equal(np.signbit(kept), np.signbit(finite))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=48))
def test_promised_bounds(values: list[float]) -> None:
    x = np.array(values, np.float32)
    largest = float(np.abs(x).max())
    wide = x.astype(np.float64)
    for bits, limit in ((8, 127), (4, 7)):
        form: Format = ("quantize", (bits, 48))
        error = np.abs(decode(encode(x, form), len(x), form) - wide).max()
        assert error <= 0.51 * largest / limit + 2.0**-100
    for mantissa in (1, 7, 15):
        form = ("bfp", (mantissa, 48))
        error = np.abs(decode(encode(x, form), len(x), form) - wide).max()
        assert error <= 2.0 ** (np.frexp(largest)[1] - 1 - (mantissa - 1)) + 2.0**-95


def test_terngrad_is_unbiased_and_repeatable() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 200_000).astype(np.float32)
    form: Format = ("terngrad", (7, 0))
    payload = encode(x, form)
    assert payload.tobytes() == encode(x, form).tobytes()
    assert payload.tobytes() != encode(x, ("terngrad", (8, 0))).tobytes()
    error = decode(payload, len(x), form).astype(np.float64) - x
    deviation = np.sqrt(
        (np.abs(x) - x.astype(np.float64) ** 2).mean() / len(x)
    )  # of the mean: p (1 - p) per value
    assert abs(error.mean()) < 5 * deviation


def nan_scale(payload: Bytes) -> None:
    payload[:4] = np.array([0x7FC00001], np.uint32).view(np.uint8)


MALFORMED: list[tuple[str, Format, int, Any]] = [
    ("marker", ("pack", (8,)), 40, lambda p: p.__setitem__(-1, 2)),
    ("unused bits", ("pack", (10,)), 5, lambda p: p.__setitem__(-1, p[-1] | 0x80)),
    ("unused bits", ("pack", (3,)), 1, lambda p: p.__setitem__(0, 0x08)),
    ("code -128", ("quantize", (8, 16)), 99, lambda p: p.__setitem__(-50, 0x80)),
    ("code -128 at the end", ("quantize", (8, 16)), 99, lambda p: p.__setitem__(-1, 0x80)),
    ("code -8, low", ("quantize", (4, 16)), 200, lambda p: p.__setitem__(-80, 0x18)),
    ("code -8, high", ("quantize", (4, 16)), 200, lambda p: p.__setitem__(-1, 0x81)),
    ("unused half", ("quantize", (4, 16)), 33, lambda p: p.__setitem__(-1, 0x10)),
    ("negative scale", ("quantize", (8, 16)), 99, lambda p: p.__setitem__(7, p[7] | 0x80)),
    ("another NaN", ("quantize", (8, 16)), 99, nan_scale),
    ("another NaN", ("terngrad", (0, 0)), 9, nan_scale),
    ("exponent 31", ("fp8", (16,)), 99, lambda p: p.__setitem__(6, 31)),
    ("code 3", ("terngrad", (0, 0)), 99, lambda p: p.__setitem__(10, 0x0C)),
    ("unused bits", ("terngrad", (0, 0)), 9, lambda p: p.__setitem__(-1, 0x04)),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("_what", "form", "n", "damage"), MALFORMED, ids=lambda value: str(value)[:20])
def test_malformed_payloads_are_refused_untouched(
    _what: str, form: Format, n: int, damage: Any, target: str
) -> None:
    with _native.use_target(target):
        payload = encode(np.linspace(-1, 1, n).astype(np.float32), form)
        damage(payload)
        refuse(payload, n, form)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_wrong_lengths_are_refused_untouched(form: Format) -> None:
    for n in (0, 1, 33, 1500):
        payload = encode(np.ones(n, np.float32), form)
        refuse(np.append(payload, np.uint8(0)), n, form)
        if len(payload) > 0:
            refuse(payload[:-1], n, form)


def refuse(payload: Bytes, n: int, form: Format) -> None:
    out = torch.full((n,), 7.0)
    for read in (_native.decode, _native.decode_add):
        with pytest.raises(PayloadError, match=form[0]):
            read(form[0], torch.from_numpy(payload.copy()), out, form[1])
        assert (out == 7).all()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_flushing_denormals_in_the_caller_changes_nothing(form: Format) -> None:
    xs = list(chunks(100, 5))
    before = [encode(x, form) for x in xs]
    numbers = [decode(payload, 100, form) for payload in before]
    try:
        assert torch.set_flush_denormal(True)
        for x, payload, values in zip(xs, before, numbers, strict=True):
            assert encode(x, form).tobytes() == payload.tobytes()
            assert decode(payload, 100, form).tobytes() == values.tobytes()
    finally:
        torch.set_flush_denormal(False)
