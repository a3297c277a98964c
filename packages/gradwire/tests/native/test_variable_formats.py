"""errbound and inceptionn: every target against references written from the papers' definitions in NumPy."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import _native
from gradwire.errors import PayloadError

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Format = tuple[str, tuple[int, ...]]

SIZES = np.array([0, 1, 2, 4])
TARGETS = _native.available_targets()
ERRBOUNDS: list[Format] = [
    ("errbound", (e,)) for e in (1, 2, 24, 107, 117, 121, 127, 238, 239, 246, 247, 252, 253)
]
INCEPTIONNS: list[Format] = [("inceptionn", (e, 0)) for e in (107, 111, 112, 117, 119, 121, 125, 126)]
BOUNDED: list[Format] = [("inceptionn", (e, 1)) for e in (113, 114, 117, 119, 121, 126)]
FORMATS = ERRBOUNDS + INCEPTIONNS + BOUNDED
SOME_FORMATS: list[Format] = [
    ("errbound", (117,)),
    ("errbound", (247,)),
    ("inceptionn", (117, 0)),
    ("inceptionn", (117, 1)),
]


def used_bytes(classes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    used: npt.NDArray[np.bool_] = np.arange(4) < SIZES[classes][..., None]
    return used


def as_bytes(codes: npt.NDArray[np.uint32]) -> Bytes:
    return np.ascontiguousarray(codes).view(np.uint8).reshape(*codes.shape, 4)


def reference_errbound(x: Floats, exponent: int) -> Bytes:
    wide = x.astype(np.float64)
    finite = np.isfinite(x)
    q = np.rint(np.where(finite, wide, 0) / 2.0 ** (exponent - 126))
    fits = finite & (np.abs(q) <= 32767) & (np.abs(q) * 2.0 ** (exponent - 126) < 2.0**128)
    q = np.where(fits, q, 0).astype(np.int32)
    classes = np.where(~fits, 3, np.where(q == 0, 0, np.where(np.abs(q) <= 127, 1, 2)))
    codes = np.where(fits, q.view(np.uint32), x.view(np.uint32))
    quartets = np.zeros(-(-len(x) // 4) * 4, np.int64)
    quartets[: len(x)] = classes
    tags = (quartets.reshape(-1, 4) * [1, 4, 16, 64]).sum(axis=1).astype(np.uint8)
    return np.concatenate([tags, as_bytes(codes)[used_bytes(classes)]])


def reference_inceptionn(x: Floats, eb: int, bounded: int) -> Bytes:
    padded = np.zeros(-(-len(x) // 8) * 8, np.float32)
    padded[: len(x)] = x
    bits = padded.view(np.uint32).astype(np.int64)
    sign, e, significand = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF | 0x800000
    mid = eb + math.ceil((127 - eb) / 2)
    classes = np.where(e >= 127, 3, np.where(e < eb, 0, np.where(e >= mid, 2, 1)))
    wide = sign << 15 | (significand >> np.clip(127 - e, 0, 62)) >> 8 & 0x7FFF  # bits 22..8
    narrow = (
        sign << 7 | (significand >> np.clip((mid if bounded else 127) - e, 0, 62)) >> 16 & 0x7F
    )  # bits 22..16
    codes = np.where(classes == 3, bits, np.where(classes == 2, wide, narrow)).astype(np.uint32)
    tags = (
        (classes.reshape(-1, 8) << np.arange(0, 16, 2))
        .sum(axis=1)
        .astype("<u2")
        .view(np.uint8)
        .reshape(-1, 2)
    )
    rows = np.concatenate([tags, as_bytes(codes).reshape(-1, 32)], axis=1)
    kept = np.concatenate([np.ones_like(tags, bool), used_bytes(classes).reshape(-1, 32)], axis=1)
    return np.asarray(rows[kept], np.uint8)


def reference_encode(x: Floats, form: Format) -> Bytes:
    name, params = form
    return (
        reference_errbound(x, params[0])
        if name == "errbound"
        else reference_inceptionn(x, params[0], params[1])
    )


def expected_errbound(x: Floats, exponent: int) -> Floats:
    step = 2.0 ** (exponent - 126)
    q = np.rint(x.astype(np.float64) / step)
    raw = ~(np.abs(q) <= 32767) | ~(np.abs(q * step) < 2.0**128)
    return np.where(raw, x, (q * step + 0.0).astype(np.float32))


def expected_inceptionn(x: Floats, eb: int, bounded: int) -> Floats:
    mid = eb + math.ceil((127 - eb) / 2)
    out = np.empty_like(x)
    for i, value in enumerate(x):
        bits = int(value.view(np.uint32))
        e = bits >> 23 & 0xFF
        width, top = (15, 127) if e >= mid else (7, mid if bounded else 127)
        vector = ((bits & 0x7FFFFF | 0x800000) >> (top - e) >> (23 - width)) if eb <= e < 127 else 0
        if e >= 127:
            out[i] = value
        elif vector == 0:
            out[i] = 0.0
        else:  # rebuild the float from the first 1, counted from the sign bit
            location = width + 1 - vector.bit_length()
            mantissa = (vector << location & ((1 << width) - 1)) << (23 - width)
            out[i] = np.uint32(bits >> 31 << 31 | (top - location) << 23 | mantissa).view(np.float32)
    return out


def expected_values(x: Floats, form: Format) -> Floats:
    name, params = form
    return (
        expected_errbound(x, params[0])
        if name == "errbound"
        else expected_inceptionn(x, params[0], params[1])
    )


def neighbours(values: npt.NDArray[Any]) -> Floats:
    middle = values.astype(np.float32)
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))
    return np.concatenate([middle, up, down, -middle, -up, -down]).astype(np.float32)


def adversarial(form: Format) -> Floats:
    rng = np.random.default_rng(7)
    exponent = form[1][0]
    step = np.float64(2.0) ** (exponent - 126)
    ties = (np.array([0, 1, 2, 3, 126, 127, 128, 254, 32766, 32767, 32768, 65535]) + 0.5) * step
    wholes = np.array([1, 2, 127, 128, 32767, 32768, 2.0**31, 2.0**32]) * step
    borders = 2.0 ** np.arange(exponent - 128.0, 2.0).clip(-149)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38], np.float32
    )
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF812345], np.uint32).view(np.float32)
    exponents = np.repeat(np.arange(512, dtype=np.uint32), 4)
    mantissas = np.tile(np.array([0, 1, 0x555555, 0x7FFFFF], np.uint32), 512)
    every_exponent = (exponents << 23 | mantissas).view(np.float32)
    anything = rng.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    laplace = (rng.laplace(size=4096) * step).astype(np.float32)
    mixed = (rng.laplace(size=4096) * step * 2.0 ** rng.integers(-4, 22, 4096)).astype(np.float32)
    unit = rng.laplace(size=4096).astype(np.float32) * np.float32(2.0) ** rng.integers(-16, 2, 4096).astype(
        np.float32
    )
    runs = np.concatenate([mixed[:70], np.zeros(300, np.float32), unit[:90], np.zeros(999, np.float32)])
    parts = [
        special,
        nans,
        every_exponent,
        anything,
        neighbours(ties),
        neighbours(wholes),
        neighbours(borders),
    ]
    return np.concatenate([*parts, laplace, mixed, unit, runs]).astype(np.float32)


def encode(x: Floats, form: Format) -> Bytes:
    name, params = form
    out = torch.full((_native.max_nbytes(name, len(x), params),), 0xA5, dtype=torch.uint8)
    return out[: _native.encode(name, torch.from_numpy(x.copy()), out, params)].numpy()


def decode(payload: Bytes, n: int, form: Format, acc: Floats | None = None) -> Floats:
    out = torch.full((n,), 123.0) if acc is None else torch.from_numpy(acc.copy())
    run = _native.decode if acc is None else _native.decode_add
    run(form[0], torch.from_numpy(payload.copy()), out, form[1])
    return out.numpy()


def assert_same_bits(actual: Floats, wanted: Floats, *, any_nan: bool = False) -> None:
    both_nan = np.isnan(actual) & np.isnan(wanted) & any_nan
    different = np.flatnonzero((actual.view(np.uint32) != wanted.view(np.uint32)) & ~both_nan)
    assert different.size == 0, (
        f"first at {different[0]}: {actual[different[0]]} is not {wanted[different[0]]}"
    )


@pytest.fixture(autouse=True)
def extreme_floats_are_welcome() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    with _native.use_target(request.param):
        yield request.param


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.usefixtures("target")
def test_adversarial_values_match_the_definition(form: Format) -> None:
    x = adversarial(form)
    payload = encode(x, form)
    np.testing.assert_array_equal(payload, reference_encode(x, form))
    values = expected_values(x, form)
    assert_same_bits(decode(payload, len(x), form), values)
    acc = np.random.default_rng(1).permutation(x)
    assert_same_bits(decode(payload, len(x), form, acc), acc + values, any_nan=True)


@pytest.mark.parametrize("form", SOME_FORMATS, ids=str)
@pytest.mark.usefixtures("target")
def test_every_short_length_matches_the_definition(form: Format) -> None:
    x = np.random.default_rng(2).permutation(adversarial(form))
    for n in range(201):
        payload = encode(x[:n], form)
        np.testing.assert_array_equal(payload, reference_encode(x[:n], form))
        assert_same_bits(decode(payload, n, form), expected_values(x[:n], form))


@given(bits=st.lists(st.integers(0, 2**32 - 1), max_size=70), exponent=st.integers(1, 253))
@settings(max_examples=150, deadline=None)
def test_errbound_keeps_any_bound_for_any_floats(bits: list[int], exponent: int) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    for name in TARGETS:
        with _native.use_target(name):
            payload = encode(x, ("errbound", (exponent,)))
            np.testing.assert_array_equal(payload, reference_errbound(x, exponent))
            y = decode(payload, len(x), ("errbound", (exponent,)))
        finite = np.isfinite(x)
        assert_same_bits(y[~finite], x[~finite])
        assert np.all(np.abs(y[finite].astype(np.float64) - x[finite]) <= 2.0 ** (exponent - 127))


@pytest.mark.parametrize("form", BOUNDED, ids=str)
@pytest.mark.usefixtures("target")
def test_bounded_inceptionn_keeps_its_bound(form: Format) -> None:
    x = adversarial(form)
    x = x[np.isfinite(x)]
    error = np.abs(decode(encode(x, form), len(x), form).astype(np.float64) - x)
    assert error.max() <= 2.0 ** (form[1][0] - 127)


def test_printed_inceptionn_loses_up_to_2_to_the_minus_7_at_2_to_the_minus_10() -> None:
    x = np.linspace(2**-10, 2**-5, 40001, dtype=np.float32)
    error = np.abs(decode(encode(x, ("inceptionn", (117, 0))), len(x), ("inceptionn", (117, 0))) - x)
    assert 0.999 * 2**-7 < error.max() <= 2**-7


@pytest.mark.parametrize("form", SOME_FORMATS, ids=str)
@pytest.mark.usefixtures("target")
def test_threads_change_nothing(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.resize(np.random.default_rng(3).permutation(adversarial(form)), 3 * (1 << 17) + 4 * 64 + 13)
    x[200_000:300_000] = 0
    monkeypatch.setenv("GRADWIRE_THREADS", "1")
    payload = encode(x, form)
    values = decode(payload, len(x), form)
    acc = x[::-1].copy()
    added = decode(payload, len(x), form, acc)
    for threads in ("2", "3"):
        monkeypatch.setenv("GRADWIRE_THREADS", threads)
        np.testing.assert_array_equal(encode(x, form), payload)
        assert_same_bits(decode(payload, len(x), form), values)
        assert_same_bits(decode(payload, len(x), form, acc), added, any_nan=True)


@pytest.mark.parametrize("form", [*SOME_FORMATS, ("errbound", (1,)), ("errbound", (253,))], ids=str)
@pytest.mark.usefixtures("target")
def test_flushing_of_subnormals_in_the_caller_changes_nothing(form: Format) -> None:
    x = adversarial(form)
    acc = np.resize(np.array([1e-45, -1e-40, 0.5], np.float32), len(x))
    plain = encode(x, form), decode(reference_encode(x, form), len(x), form, acc)
    assert torch.set_flush_denormal(True)
    try:
        flushed = encode(x, form), decode(reference_encode(x, form), len(x), form, acc)
        assert (torch.tensor([1e-40]) * 1.0).item() == 0.0, "the kernels must restore the caller's mode"
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(flushed[0], plain[0])
    assert_same_bits(flushed[1], plain[1])


@pytest.fixture
def page_end() -> Iterator[int]:
    """Yield the address where readable memory ends: one step further is a segmentation fault."""
    size, page = 1 << 17, mmap.PAGESIZE
    area = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), 0) == 0
    yield start + size
    assert (
        libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
        == 0
    )


def tensor_before(end: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    array = np.ctypeslib.as_array((ctypes.c_uint8 * max(nbytes, 4)).from_address(end - max(nbytes, 4)))
    return torch.from_numpy(array)[: max(nbytes, 4)][max(nbytes, 4) - nbytes :].view(dtype)


@pytest.mark.parametrize("form", SOME_FORMATS, ids=str)
@pytest.mark.usefixtures("target")
def test_nothing_is_touched_outside_the_buffers(form: Format, page_end: int) -> None:
    name, params = form
    raw = np.full(130, np.nan, np.float32)  # the worst case in size
    mixed = np.random.default_rng(4).permutation(adversarial(form))
    for n in [*range(1, 40), 64, 127, 129]:
        for x in (raw[:n], mixed[:n], np.append(mixed[: n - 1], np.float32(0)), np.zeros(n, np.float32)):
            most = _native.max_nbytes(name, n, params)
            chunk = torch.from_numpy(x.copy())
            out = tensor_before(page_end, most, torch.uint8)  # of any alignment
            before = ctypes.string_at(page_end - most - 64, 64)
            nbytes = _native.encode(name, chunk, out, params)
            assert ctypes.string_at(page_end - most - 64, 64) == before
            assert nbytes <= most
            payload = out[:nbytes].clone()
            tight = tensor_before(page_end, nbytes, torch.uint8)
            tight.copy_(payload)
            values = torch.empty(n)
            _native.decode(name, tight, values, params)
            floats = tensor_before(page_end, 4 * n, torch.float32)
            floats.copy_(chunk)
            again = torch.empty(most, dtype=torch.uint8)
            assert torch.equal(again[: _native.encode(name, floats, again, params)], payload)
            _native.decode(name, payload, floats, params)
            assert_same_bits(floats.numpy(), values.numpy())


def assert_refused(payload: Bytes, n: int, form: Format, reason: str) -> None:
    for run in (_native.decode, _native.decode_add):
        out = torch.full((n,), 5.0)
        with pytest.raises(PayloadError, match=reason):
            run(form[0], torch.from_numpy(payload.copy()), out, form[1])
        assert torch.equal(out, torch.full((n,), 5.0))


@pytest.mark.parametrize("form", SOME_FORMATS, ids=str)
@pytest.mark.usefixtures("target")
def test_a_payload_of_another_length_is_refused(form: Format) -> None:
    x = np.random.default_rng(5).permutation(adversarial(form))[:150]
    payload = encode(x, form)
    for nbytes in range(len(payload)):
        assert_refused(payload[:nbytes], len(x), form, "truncated|declare|empty")
    assert_refused(np.append(payload, np.uint8(0)), len(x), form, "declare|left over")


@pytest.mark.usefixtures("target")
def test_errbound_refuses_wrong_exponents_and_unused_tag_bits() -> None:
    x = np.array([0.01, 0, 3.0, 0, 0.02], np.float32)
    absolute, relative = ("errbound", (117,)), ("errbound", (0, 0x3D4CCCCD))
    payload = encode(x, relative)
    assert_refused(payload[:0], 5, relative, "empty")
    for exponent in (0, 254, 255):
        broken = payload.copy()
        broken[0] = exponent
        assert_refused(broken, 5, relative, "1..253")
    for form, last_tags in ((absolute, 1), (relative, 2)):
        payload = encode(x, form)
        for bit in range(2, 8):
            broken = payload.copy()
            broken[last_tags] |= 1 << bit
            assert_refused(broken, 5, form, "unused bits")


@pytest.mark.usefixtures("target")
def test_inceptionn_refuses_padding_with_a_size() -> None:
    payload = encode(np.full(5, 0.5, np.float32), ("inceptionn", (117, 0)))
    payload[1] |= 1 << 2  # lane 5 of class 1
    assert_refused(np.append(payload, np.uint8(0)), 5, ("inceptionn", (117, 0)), "padding")


@pytest.mark.parametrize("form", SOME_FORMATS, ids=str)
def test_corrupted_payloads_are_refused_or_decoded_alike_by_all_targets(form: Format) -> None:
    rng = np.random.default_rng(6)
    x = rng.permutation(adversarial(form))
    accepted = 0
    for _ in range(300):
        n = int(rng.integers(1, 120))
        payload = encode(x[:n], form)
        payload[rng.integers(0, len(payload), 2)] = rng.integers(0, 256, 2)
        outcomes = []
        for name in TARGETS:
            with _native.use_target(name):
                try:
                    outcomes.append(decode(payload, n, form).tobytes())
                except PayloadError as error:
                    outcomes.append(str(error).encode())
        accepted += b"got an invalid payload" not in outcomes[0]
        assert all(each == outcomes[0] for each in outcomes)
    assert 0 < accepted < 300
