"""Scaled codecs against float64, and against the codec itself where the power of two can be told apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.codecs import Codec, parse
from gradwire.codecs.wrappers import Projected, Scaled, offloadable, scalable
from gradwire.errors import PayloadError, SpecError
from support.cases import for_each

SPECS = [
    *("inceptionn:2^-10", "inceptionn:2^-1", "inceptionn:2^-20", "inceptionn:2^-6,bounded"),
    *("errbound:2^-1", "errbound:2^-10", "errbound:2^-24"),
]
CODECS = [
    *(Scaled(scalable(parse(spec))) for spec in SPECS),
    *(Scaled(Projected(offloadable(parse(spec)))) for spec in SPECS[:4]),
]
EACH = pytest.mark.parametrize("codec", CODECS, ids=str)
FLOAT_MAX = float(np.finfo(np.float32).max)
TINY = float(np.float32(1e-45))
chunks = st.builds(
    lambda n, seed, exponent: values(n, seed, exponent),
    st.integers(1, 300),
    st.integers(0, 99),
    st.integers(-150, 120),
)


def values(n: int, seed: int = 0, exponent: int = 0) -> torch.Tensor:
    found = np.random.default_rng([seed, n]).laplace(0.0, 1.0, n) * 2.0**exponent
    return torch.from_numpy(found.clip(-FLOAT_MAX, FLOAT_MAX).astype(np.float32))


def roundtrip(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 7.0)
    codec.decode(codec.encode(x), out)
    return out


def bits(x: torch.Tensor) -> bytes:
    return x.numpy().tobytes()


def exponent_of(payload: torch.Tensor) -> int:
    return int.from_bytes(bits(payload[:4]), "little", signed=True)


@EACH
@settings(max_examples=20)
@given(x=chunks)
def test_errors_stay_within_the_bound_that_grows_with_the_largest_value(
    codec: Scaled, x: torch.Tensor
) -> None:
    bound, inner = codec.bound(x), codec.codec.bound(x)
    largest = x.double().abs().max().item()
    assert largest == 0 or bound <= 2 * inner * max(largest, 2.0**-127)
    error = (roundtrip(codec, x).double() - x.double()).abs().max().item()
    assert error <= bound


@EACH
@settings(max_examples=20)
@given(x=chunks, acc=chunks)
def test_sums_and_other_threads_get_the_same_bits(codec: Scaled, x: torch.Tensor, acc: torch.Tensor) -> None:
    acc = acc[: len(x)].contiguous()
    x = x[: len(acc)].contiguous()
    payload = codec.encode(x)
    assert payload.numel() <= codec.max_nbytes(len(x))
    wanted, summed = acc + roundtrip(codec, x), acc.clone()
    codec.decode_add(payload, summed)
    assert bits(summed) == bits(wanted)
    with flushing():
        assert bits(codec.encode(x)) == bits(payload)
        flushed, again = acc.clone(), torch.empty_like(x)
        codec.decode_add(payload, flushed)
        codec.decode(payload, again)
    assert bits(flushed) == bits(wanted)
    assert bits(again) == bits(roundtrip(codec, x))


@contextmanager
def flushing() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@EACH
@settings(max_examples=20)
@given(x=chunks, shift=st.integers(-60, 60))
def test_another_size_of_the_same_values_makes_the_same_payload(
    codec: Scaled, x: torch.Tensor, shift: int
) -> None:
    largest = x.abs().max().item()
    smallest = x[x != 0].abs().min().item() if largest else 1.0
    fits = [2.0**-100 < value * 2.0**by < 2.0**100 for value in (largest, smallest) for by in (0, shift)]
    if largest == 0 or not all(fits):
        return
    payload, moved = codec.encode(x), codec.encode(x * 2.0**shift)
    assert bits(moved[4:]) == bits(payload[4:])
    assert exponent_of(moved) == exponent_of(payload) - shift
    scaled = x.double() * 2.0 ** exponent_of(payload)
    assert 0.5 <= scaled.abs().max() < 1
    inner = roundtrip(codec.codec, scaled.float())
    assert bits(roundtrip(codec, x)) == bits((inner.double() * 2.0 ** -exponent_of(payload)).float())


@EACH
@for_each(
    "x, exponent",
    [
        ([], 0),
        ([0.0, -0.0, 0.0], 0),
        ([math.nan, 1e-30], 0),
        ([1e-30, -math.inf, 2.0], 0),
        ([TINY, 0.0], 126),
        ([2.0**-127, -TINY], 126),
        ([2.0**-126], 125),
        ([0.5], 0),
        ([1.0], -1),
        ([2.0**126 - 2.0**102, -TINY], -126),
        ([2.0**126, 1.0, 1e-3], 0),
        ([FLOAT_MAX, -FLOAT_MAX], 0),
    ],
)
def test_zeros_odd_values_and_the_ends_of_the_range(codec: Scaled, x: list[float], exponent: int) -> None:
    chunk = torch.tensor(x, dtype=torch.float32)
    payload = codec.encode(chunk)
    assert exponent_of(payload) == exponent
    decoded = roundtrip(codec, chunk)
    assert torch.equal(decoded.isfinite(), chunk.isfinite())
    finite = chunk.isfinite()
    error = (decoded.double() - chunk.double())[finite].abs()
    assert not error.numel() or error.max().item() <= codec.bound(chunk)
    if not exponent:
        assert bits(payload[4:]) == bits(codec.codec.encode(chunk))


@EACH
def test_a_malformed_payload_is_refused_and_writes_nothing(codec: Scaled) -> None:
    x, out = values(40), torch.full((40,), 7.0)
    payload = codec.encode(x)
    worse = [payload[:0], payload[:3], payload[:-1], torch.cat((payload, payload[:1]))]
    for exponent in (127, -127, 1 << 30):
        altered = payload.clone()
        altered[:4] = torch.frombuffer(
            bytearray(exponent.to_bytes(4, "little", signed=True)), dtype=torch.uint8
        )
        worse.append(altered)
    for each in worse:
        for decode in (codec.decode, codec.decode_add):
            with pytest.raises(PayloadError):
                decode(each, out)
    assert torch.equal(out, torch.full((40,), 7.0))


def test_values_that_no_bound_could_fit_keep_their_precision() -> None:
    x = values(10_000, exponent=-90)
    plain, scaled = roundtrip(parse("errbound:2^-10"), x), roundtrip(CODECS[5], x)
    assert not plain.any()
    assert (scaled - x).double().norm() < 0.01 * x.double().norm()


@pytest.mark.parametrize("place", [0, 200_000, -1])
def test_several_threads_find_the_same_scale_and_values(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    x = values(3 * (1 << 17) + 5, exponent=-30)
    x[place] = -3.0
    wanted, acc = CODECS[5].encode(x), x.flip(0)
    CODECS[5].decode_add(wanted, acc)
    assert exponent_of(wanted) == -2
    monkeypatch.setenv("GRADWIRE_THREADS", "3")
    again = x.flip(0)
    CODECS[5].decode_add(wanted, again)
    assert bits(CODECS[5].encode(x)) == bits(wanted)
    assert bits(again) == bits(acc)


def test_floats_for_nics_are_the_end_of_the_payload() -> None:
    codec, x = CODECS[-1], values(100, exponent=-40)
    payload = codec.encode(x)
    assert codec.sends_floats
    assert payload.numel() == 404
    floats = payload[4:].clone().view(torch.float32)
    nic = parse("inceptionn:2^-6,bounded")
    assert bits(roundtrip(nic, floats)) == bits(floats)
    assert not CODECS[0].sends_floats


@pytest.mark.parametrize(
    "spec", ["identity", "fp8", "quantize:8", "truncate:16", "errbound:2^-25", "errbound:2^0"]
)
def test_codecs_whose_bound_is_not_absolute_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="scale: expected a codec with an absolute bound"):
        scalable(parse(spec))
