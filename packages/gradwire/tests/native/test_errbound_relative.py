"""errbound's relative mode: bounds follow the RMS of chunk or block, alike on all targets and threads."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gradwire import _native
from gradwire.errors import PayloadError

Floats = npt.NDArray[np.float32]

SIZES = np.array([0, 1, 2, 4])
THREADED = 3 * (1 << 17) + 5
"""Long enough for three parts of kMinPartElements (native/include/gradwire/parallel.h)."""


def params_of(fraction: float, block: int = 0) -> tuple[int, ...]:
    return 0, int(np.float32(fraction).view(np.int32)), block


def encode(x: Floats, fraction: float, block: int = 0) -> bytes:
    return encode_with(x, params_of(fraction, block))


def encode_with(x: Floats, params: tuple[int, ...]) -> bytes:
    out = torch.empty(_native.max_nbytes("errbound", len(x), params), dtype=torch.uint8)
    return out[: _native.encode("errbound", torch.from_numpy(x.copy()), out, params)].numpy().tobytes()


def encode_on_all_targets(x: Floats, fraction: float, block: int = 0) -> bytes:
    payloads = []
    for name in _native.available_targets():
        with _native.use_target(name):
            payloads.append(encode(x, fraction, block))
    assert all(payload == payloads[0] for payload in payloads)
    return payloads[0]


def tensor_of(payload: bytes) -> torch.Tensor:
    return torch.tensor(list(payload), dtype=torch.uint8)


def decode(payload: bytes, out: Floats, block: int, *, add: bool = False) -> Floats:
    values = torch.from_numpy(out.copy())
    run = _native.decode_add if add else _native.decode
    run("errbound", tensor_of(payload), values, params_of(1.0, block))
    return values.numpy()


def blocks_of(x: Floats, block: int) -> list[Floats]:
    return [x[first : first + block] for first in range(0, len(x), block)]


def exponent_by_the_text(x: Floats, fraction: float) -> int:
    """The biased exponent of the largest power of two that is not above the share of the RMS."""
    finite = x[np.isfinite(x)].astype(np.float64)
    if not finite.any():
        return 1
    rms = math.sqrt(math.fsum(np.square(finite).tolist()) / len(finite))
    return min(max(math.frexp(float(np.float32(fraction)) * rms)[1] - 1 + 127, 1), 253)


def quantised(x: Floats, exponent: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
    """Which values are a multiple of twice the bound, and of which; all others are carried as they are."""
    step = 2.0 ** (exponent - 126)
    q = np.rint(np.where(np.isfinite(x), x, 0).astype(np.float64) / step)
    fits = np.isfinite(x) & (np.abs(q) <= 32767) & (np.abs(q) * step < 2.0**128)
    return fits, np.where(fits, q, 0).astype(np.int32)


def payload_by_the_text(x: Floats, fraction: float, block: int) -> bytes:
    """An exponent byte for each block, the tags of all values, the data of all values."""
    exponents, classes, data = [], [np.zeros(0, np.int64)], b""
    for part in blocks_of(x, block):
        exponents.append(exponent_by_the_text(part, fraction))
        fits, q = quantised(part, exponents[-1])
        magnitude = np.abs(q)
        classes.append(np.where(~fits, 3, np.where(magnitude > 127, 2, np.where(magnitude > 0, 1, 0))))
        words = np.where(fits, q.view(np.uint32), part.view(np.uint32)).astype("<u4")
        kept = np.arange(4) < SIZES[classes[-1]][:, None]
        data += words.view(np.uint8).reshape(-1, 4)[kept].tobytes()
    quartets = np.zeros((-(-len(x) // 4), 4), np.int64)
    quartets.ravel()[: len(x)] = np.concatenate(classes)
    tags = (quartets << np.array([0, 2, 4, 6])).sum(axis=1)
    return bytes([*exponents, *tags.tolist()]) + data


def values_by_the_text(x: Floats, fraction: float, block: int) -> Floats:
    """What comes back: twice the bound of its block times q, or the value itself."""
    out = [np.zeros(0, np.float32)]
    for part in blocks_of(x, block):
        exponent = exponent_by_the_text(part, fraction)
        fits, q = quantised(part, exponent)
        out.append(np.where(fits, q * 2.0 ** (exponent - 126), part).astype(np.float32))
    return np.concatenate(out)


def layers(n: int, block: int) -> Floats:
    """Gradients whose blocks differ by many orders of magnitude, some all zero, with guests in some."""
    rng = np.random.default_rng([n, block])
    scale = 10.0 ** rng.integers(-42, 36, -(-n // block)) * (rng.random(-(-n // block)) > 0.1)
    x = (rng.laplace(size=n) * np.repeat(scale, block)[:n]).clip(-3.4e38, 3.4e38).astype(np.float32)
    guests = rng.integers(0, n, n // 100)
    x[guests] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38], len(guests))
    return x


def same(left: Floats, right: Floats) -> bool:
    return left.tobytes() == right.tobytes()


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("scale", [1e-41, 1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("n", [1, 7, 15, 16, 17, 1000, 65536, 65537, 400_001])
def test_bound_is_the_power_of_two_below_its_share_of_the_rms(
    n: int, scale: float, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", threads)
    x = (np.random.default_rng(n).laplace(size=n) * scale).astype(np.float32)
    rms = math.sqrt(math.fsum((x.astype(np.float64) ** 2).tolist()) / n)
    wanted = np.clip(math.floor(math.log2(np.float32(0.05) * rms)) + 127, 1, 253) if rms > 0 else 1
    payload = encode_on_all_targets(x, 0.05)
    assert payload[0] == wanted
    assert payload[1:] == encode_with(x, (payload[0],))


def test_sum_is_rounded_in_sixteen_lanes_as_documented() -> None:
    # Each lane starts with two values whose squares add up to just less than 1; the squares that follow are
    # too small to count one by one, yet together they would lift the exact sum above 16.
    x = np.full(65536, 2.0**-28, np.float32)
    x[:16] = 1 - 2.0**-24
    x[16:32] = np.nextafter(np.float32(2.0**-11.5), np.float32(0))
    assert math.fsum((x.astype(np.float64) ** 2).tolist()) > 16
    assert encode_on_all_targets(x, 1.0)[0] == 127 - 6 - 1  # RMS just below 2^-6


def test_non_finite_values_are_left_out_and_zeros_take_the_smallest_bound() -> None:
    assert encode_on_all_targets(np.zeros(100, np.float32), 1.0)[0] == 1
    assert encode_on_all_targets(np.full(100, np.nan, np.float32), 1.0)[0] == 1
    assert encode_on_all_targets(np.zeros(0, np.float32), 1.0) == bytes([1])
    x = np.full(101, 0.5, np.float32)
    x[[3, 50, 100]] = [np.inf, np.nan, -np.inf]
    assert encode_on_all_targets(x, 1.0)[0] == 126
    assert encode_on_all_targets(x, 0.25)[0] == 124
    assert encode_on_all_targets(np.full(33, 3.4e38, np.float32), 1.0)[0] == 253


@pytest.mark.parametrize("fraction", [0.004, 0.25, 1.0])
@pytest.mark.parametrize(
    ("block", "n"),
    [
        (64, 1),
        (64, 63),
        (64, 64),
        (64, 65),
        (64, 2003),
        (128, 1920),
        (1024, 1023),
        (1024, 9001),
        (65536, 150_001),
    ],
)
def test_blocks_are_those_of_the_text_on_all_targets(block: int, n: int, fraction: float) -> None:
    x, acc = layers(n, block), np.random.default_rng(n).normal(size=n).astype(np.float32)
    payload = payload_by_the_text(x, fraction, block)
    values = values_by_the_text(x, fraction, block)
    assert encode_on_all_targets(x, fraction, block) == payload
    for name in _native.available_targets():
        with _native.use_target(name):
            assert same(decode(payload, np.full_like(x, 7.0), block), values)
            assert same(decode(payload, acc, block, add=True), acc + values)


@pytest.mark.parametrize("target", _native.available_targets())
@pytest.mark.parametrize("block", [64, 1024, 65536])
def test_parts_of_every_number_of_threads_are_whole_blocks(
    block: int, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = layers(THREADED, block)
    payload, values = payload_by_the_text(x, 0.25, block), values_by_the_text(x, 0.25, block)
    with _native.use_target(target):
        for threads in ("1", "2", "3"):
            monkeypatch.setenv("GRADWIRE_THREADS", threads)
            assert encode(x, 0.25, block) == payload
            assert same(decode(payload, np.full_like(x, 7.0), block), values)
            assert same(decode(payload, np.ones_like(x), block, add=True), np.float32(1.0) + values)


@pytest.mark.parametrize("n", [1, 65, 65535, 65536])
def test_one_block_is_a_chunk_without_blocks(n: int) -> None:
    x = layers(n, 65536)
    assert encode_on_all_targets(x, 0.05, 65536) == encode_on_all_targets(x, 0.05)


def test_no_values_have_no_blocks() -> None:
    assert encode_on_all_targets(np.zeros(0, np.float32), 1.0, 64) == b""
    assert len(decode(b"", np.zeros(0, np.float32), 64)) == 0
    with pytest.raises(PayloadError, match="a different number of bytes"):
        decode(b"\1", np.zeros(0, np.float32), 64)


def test_values_that_fit_nowhere_fill_the_payload_and_no_more() -> None:
    x = torch.full((200,), math.nan)
    most = _native.max_nbytes("errbound", 200, params_of(1.0, 64))
    assert most == 4 + 50 + 800
    for name in _native.available_targets():
        with _native.use_target(name):
            out = torch.full((most + 64,), 0xA5, dtype=torch.uint8)
            assert _native.encode("errbound", x, out, params_of(1.0, 64)) == most
            assert (out[most:] == 0xA5).all()


def assert_refused(payload: bytes, n: int, block: int, reason: str) -> None:
    for name in _native.available_targets():
        for run in (_native.decode, _native.decode_add):
            out = torch.full((n,), 5.0)
            with _native.use_target(name), pytest.raises(PayloadError, match=reason):
                run("errbound", tensor_of(payload), out, params_of(1.0, block))
            assert (out == 5.0).all()


def test_malformed_blocks_are_refused_and_nothing_is_written() -> None:
    x = layers(203, 64)
    payload = encode(x, 0.25, 64)
    exponents, tags = 4, 51
    cuts = {0: "it is empty", 1: "exponent bytes are truncated", exponents: "tags are truncated"}
    cuts |= {exponents + tags: "a different number", len(payload): ""}
    for (first, reason), (end, _) in pairwise(cuts.items()):
        for nbytes in range(first, end):
            assert_refused(payload[:nbytes], len(x), 64, reason)
    assert_refused(payload + b"\0", len(x), 64, "a different number")
    for at in range(exponents):
        for wrong in (0, 254, 255):
            assert_refused(payload[:at] + bytes([wrong]) + payload[at + 1 :], len(x), 64, "within 1..253")
    last = exponents + tags - 1
    for bit in (6, 7):  # of the fourth value of the last quartet, which has three
        broken = payload[:last] + bytes([payload[last] | 1 << bit]) + payload[last + 1 :]
        assert_refused(broken, len(x), 64, "unused bits")
