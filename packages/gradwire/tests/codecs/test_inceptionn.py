"""The published algorithm, written out; its classes, its errors and the repair."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.codecs import Codec, Inceptionn

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


def compress(word: int, eb: int, bounded: bool) -> tuple[int, bytes]:
    """Algorithm 2 on the bits of one float: tag and payload; with the repair where ``bounded``."""
    sign, e, m = word >> 31, word >> 23 & 0xFF, word & 0x7FFFFF
    mid = eb + math.ceil((127 - eb) / 2)
    if e >= 127:
        return 3, word.to_bytes(4, "little")
    if e < eb:
        return 0, b""
    if e >= mid:
        shifted = (1 << 23 | m) >> (127 - e)
        return 2, (sign << 15 | shifted >> 8 & 0x7FFF).to_bytes(2, "little")
    shifted = (1 << 23 | m) >> ((mid if bounded else 127) - e)
    return 1, bytes([sign << 7 | shifted >> 16 & 0x7F])


def decompress(tag: int, data: bytes, eb: int, bounded: bool) -> int:
    """Algorithm 3: the bits of the float. The location of the first 1 counts from the sign bit, from 1 up."""
    value = int.from_bytes(data, "little")
    if tag == 3:
        return value
    width = (0, 7, 15)[tag]
    magnitude = value & ((1 << width) - 1)
    if magnitude == 0:
        return 0
    location = width - magnitude.bit_length() + 1
    mid = eb + math.ceil((127 - eb) / 2)
    e = (mid if bounded and tag == 1 else 127) - location
    m = (magnitude << (23 - width + location)) & 0x7FFFFF
    return (value >> width) << 31 | e << 23 | m


def encode(x: torch.Tensor, codec: Inceptionn) -> bytes:
    """Bursts of eight, the last one padded with zeros."""
    eb = 127 + round(math.log2(codec.threshold))
    words = x.numpy().view(np.uint32).tolist()
    words += [0] * (-len(words) % 8)
    payload = b""
    for burst in range(0, len(words), 8):
        lanes = [compress(word, eb, codec.bounded) for word in words[burst : burst + 8]]
        tags = sum(tag << 2 * lane for lane, (tag, _) in enumerate(lanes))
        payload += tags.to_bytes(2, "little") + b"".join(data for _, data in lanes)
    return payload


CODECS = [Inceptionn(2.0**-k) for k in (1, 6, 7, 8, 10, 13, 20)]
CODECS += [Inceptionn(2.0**-k, bounded=True) for k in (1, 2, 6, 8, 10, 14)]


@pytest.fixture(scope="module")
def every_class() -> torch.Tensor:
    """Values of every exponent from below 2^-20 to above 1, both signs, and some that are not finite."""
    rng = np.random.default_rng(4)
    values = rng.choice([-1.0, 1.0], 4003) * rng.uniform(1.0, 2.0, 4003) * 2.0 ** rng.integers(-23, 3, 4003)
    values[:8] = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 0.99999994, 1.0]
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_payloads_are_those_of_the_published_algorithm(codec: Inceptionn, every_class: torch.Tensor) -> None:
    assert bytes(codec.encode(every_class).tolist()) == encode(every_class, codec)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_decoded_values_are_those_of_the_published_algorithm(
    codec: Inceptionn, every_class: torch.Tensor, roundtrip: Roundtrip
) -> None:
    eb = 127 + round(math.log2(codec.threshold))
    expected = [
        decompress(*compress(word, eb, codec.bounded), eb, codec.bounded)
        for word in every_class.numpy().view(np.uint32).tolist()
    ]
    assert roundtrip(codec, every_class).numpy().view(np.uint32).tolist() == expected


def test_golden_vectors_are_those_of_the_published_algorithm(golden: Golden) -> None:
    for codec, x, payload in golden("inceptionn"):
        assert isinstance(codec, Inceptionn)
        assert encode(x, codec) == payload


def dense(low: float, high: float) -> torch.Tensor:
    """Floats from every corner of [low, high)."""
    first, last = (int(np.float32(value).view(np.uint32)) for value in (low, high))
    bits = np.unique(
        np.concatenate([np.linspace(first, last - 1, 1 << 18), [first, last - 1]]).astype(np.uint32)
    )
    return torch.from_numpy(bits.view(np.float32))


def largest_error(codec: Codec, x: torch.Tensor, roundtrip: Roundtrip) -> float:
    return float((roundtrip(codec, x).double() - x.double()).abs().max())


@pytest.mark.parametrize(("k", "error"), [(6, 2**-7), (8, 2**-7), (10, 2**-7)])
def test_the_published_8_bit_class_errs_up_to_2_to_the_minus_7(
    k: int, error: float, roundtrip: Roundtrip
) -> None:
    codec = Inceptionn(2.0**-k)
    middle = 2.0 ** (math.ceil(k / 2) - k)
    found = largest_error(codec, dense(2.0**-k, middle), roundtrip)
    assert 0.999 * error < found < error
    assert codec.bound(torch.ones(1)) == max(2.0**-k, error)


@pytest.mark.parametrize(("k", "share"), [(10, 0.25), (8, 0.125), (6, 0.0625)])
def test_the_bounded_8_bit_class_errs_by_a_fraction_of_the_bound(
    k: int, share: float, roundtrip: Roundtrip
) -> None:
    codec = Inceptionn(2.0**-k, bounded=True)
    middle = 2.0 ** (math.ceil(k / 2) - k)
    found = largest_error(codec, dense(2.0**-k, middle), roundtrip)
    assert 0.999 * share * 2.0**-k < found <= share * 2.0**-k
    assert largest_error(codec, dense(middle, 1.0), roundtrip) < 2.0**-15
    assert largest_error(codec, dense(2.0**-40, 2.0**-k), roundtrip) < 2.0**-k == codec.bound(torch.ones(1))


def test_the_repair_keeps_the_size_and_cuts_the_squared_error(
    laplace: torch.Tensor, roundtrip: Roundtrip
) -> None:
    def error(codec: Codec) -> float:
        lost = (roundtrip(codec, laplace) - laplace).double()
        return float(lost.square().sum() / laplace.double().square().sum())

    plain, bounded = Inceptionn(2**-10), Inceptionn(2**-10, bounded=True)
    assert plain.encode(laplace).numel() == bounded.encode(laplace).numel()
    assert error(plain) == pytest.approx(0.985, abs=0.01)
    assert error(bounded) == pytest.approx(0.079, abs=0.005)


def test_every_value_is_truncated_towards_zero(every_class: torch.Tensor, roundtrip: Roundtrip) -> None:
    finite = every_class[every_class.isfinite()]
    for codec in CODECS:
        assert (roundtrip(codec, finite).abs() <= finite.abs()).all()


def test_not_a_number_spoils_only_itself(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0.5, math.nan, 0.25, math.inf, -math.inf])
    y = roundtrip(Inceptionn(2**-10), x)
    assert torch.equal(y.isnan(), x.isnan())
    assert torch.equal(y[~x.isnan()], x[~x.isnan()])


def test_sizes_range_from_two_to_thirty_four_bytes_a_burst() -> None:
    codec = Inceptionn(2**-10)
    assert codec.encode(torch.zeros(8)).numel() == 2
    assert codec.encode(torch.full((8,), 2.0)).numel() == 34 == codec.max_nbytes(8)
    assert codec.encode(torch.full((3,), 0.5)).numel() == 2 + 3 * 2
