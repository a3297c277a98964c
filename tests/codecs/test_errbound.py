"""The four classes by arithmetic in double precision; bounds, bias and ratio on gradient-like data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire import _native
from gradwire.codecs import Codec, ErrBound, Inceptionn
from gradwire.errors import PayloadError

Roundtrip = Callable[[Codec, torch.Tensor], torch.Tensor]
Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]


def encode(x: torch.Tensor, bound: float) -> bytes:
    """The payload by the formula; exact, since doubles have room for everything."""
    tags, data = bytearray(-(-x.numel() // 4)), b""
    for i, value in enumerate(x.tolist()):
        tag, code = _classify(value, bound, np.float32(value).tobytes())
        tags[i // 4] |= tag << 2 * (i % 4)
        data += code
    return bytes(tags) + data


def _classify(value: float, bound: float, raw: bytes) -> tuple[int, bytes]:
    if not math.isfinite(value):
        return 3, raw
    q = round(value / (2 * bound))  # Python rounds halves to even
    if abs(q) > 32767 or abs(q) * 2 * bound >= 2.0**128:
        return 3, raw
    if abs(q) > 127:
        return 2, q.to_bytes(2, "little", signed=True)
    return (1, q.to_bytes(1, "little", signed=True)) if q else (0, b"")


@pytest.fixture(scope="module")
def every_class() -> torch.Tensor:
    rng = np.random.default_rng(5)
    values = rng.choice([-1.0, 1.0], 4003) * rng.uniform(1.0, 2.0, 4003) * 2.0 ** rng.integers(-20, 12, 4003)
    values[:7] = [math.inf, -math.inf, 0.0, -0.0, 1e-40, 3e38, -3e38]
    values[1000:1600] = np.arange(-300, 300) * 2.0**-10  # ties, at 2^-10
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("k", [-126, -20, -10, -6, 0, 3, 120, 125, 126])
def test_payloads_are_those_of_the_formula(k: int, every_class: torch.Tensor) -> None:
    codec = ErrBound(2.0**k)
    huge = torch.tensor([3.4e38, -3.4e38, 2.0**127, 2.0**126, 1.7e38, -1e38])
    for x in (every_class, huge, huge[:3]):
        assert bytes(codec.encode(x).tolist()) == encode(x, 2.0**k)


@pytest.mark.parametrize("k", [-10, 0, 125])
def test_decoded_values_are_the_nearest_even_multiples(
    k: int, every_class: torch.Tensor, roundtrip: Roundtrip
) -> None:
    step = 2.0 ** (k + 1)
    x = every_class.double().numpy()
    with np.errstate(invalid="ignore"):
        q = np.rint(x / step)
    fits = (np.abs(q) <= 32767) & (np.abs(q) * step < 2.0**128)
    expected = np.where(fits, np.where(fits, q, 0.0) * step, x).astype(np.float32)
    assert np.array_equal(roundtrip(ErrBound(2.0**k), every_class).numpy(), expected)


def test_golden_vectors_are_those_of_the_formula(golden: Golden) -> None:
    for codec, x, payload in golden("errbound"):
        assert isinstance(codec, ErrBound)
        if codec.absolute is not None:
            assert encode(x, codec.absolute) == payload
        else:
            assert encode(x, 2.0 ** (payload[0] - 127)) == payload[1:]
            assert payload[0] - 127 == math.log2(codec.bound(x))


def test_the_classes_end_where_the_card_says() -> None:
    codec = ErrBound(2**-10)
    step = 2.0**-9
    for value, size in (
        (0.5, 0),
        (0.51, 1),
        (127.5, 2),
        (127.49, 1),
        (32767.4, 2),
        (32767.5, 4),
        (-127.49, 1),
    ):
        assert codec.encode(torch.tensor([value * step])).numel() == 1 + size, value


@pytest.mark.parametrize("k", [6, 8, 10])
@pytest.mark.parametrize("kind", ["laplace", "normal"])
def test_no_larger_than_inceptionn_and_within_the_bound(
    k: int, kind: str, request: pytest.FixtureRequest, roundtrip: Roundtrip
) -> None:
    x = request.getfixturevalue(kind)
    codec = ErrBound(2.0**-k)
    assert codec.encode(x).numel() <= Inceptionn(2.0**-k).encode(x).numel()
    error = (roundtrip(codec, x) - x).double()
    assert error.abs().max() <= 2.0**-k == codec.bound(x)
    assert abs(error.mean()) <= 5 * error.std() / math.sqrt(error.numel())


@pytest.mark.parametrize("k", range(1, 15))
def test_no_payload_is_larger_than_inceptionns(k: int, every_class: torch.Tensor) -> None:
    errbound, inceptionn = ErrBound(2.0**-k), Inceptionn(2.0**-k)
    for x in (every_class, *(every_class[i : i + i % 17] for i in range(0, 4000, 61))):
        assert errbound.encode(x).numel() <= inceptionn.encode(x).numel()


def test_much_smaller_than_inceptionn_where_values_are_larger(laplace: torch.Tensor) -> None:
    x = 40 * laplace
    ratio = Inceptionn(2.0**-10).encode(x).numel() / ErrBound(2.0**-10).encode(x).numel()
    assert ratio > 1.2


def test_errors_have_no_bias_where_truncation_has(roundtrip: Roundtrip) -> None:
    x = torch.from_numpy(np.random.default_rng(6).uniform(0.0, 0.1, 1 << 20).astype(np.float32))
    deviation = 2.0**-9 / math.sqrt(12) / 1024
    bias = (roundtrip(ErrBound(2**-10), x) - x).double().mean()
    truncated = (roundtrip(Inceptionn(2**-10, bounded=True), x) - x).double().mean()
    assert abs(bias) < 5 * deviation
    assert truncated < -5 * deviation


@pytest.mark.parametrize("share", [0.05, 2.0**-24, 1 / 3, 1.0])
def test_a_relative_bound_is_a_share_of_the_root_mean_square(share: float, laplace: torch.Tensor) -> None:
    x = laplace[:70001].clone()
    codec = ErrBound(relative=share)
    rms = math.sqrt(float(np.square(x.numpy().astype(np.float64)).mean()))
    expected = math.floor(math.log2(float(np.float32(share)) * rms))
    assert codec.encode(x)[0] == expected + 127
    assert codec.bound(x) == 2.0**expected


def test_a_relative_bound_leaves_out_what_is_not_finite(roundtrip: Roundtrip) -> None:
    x = torch.tensor([3.0, -4.0, math.nan, math.inf, 0.0])
    codec = ErrBound(relative=1.0)
    assert codec.bound(x) == 2.0  # sqrt(25 / 3) = 2.9
    assert codec.encode(x)[0] == 128
    assert torch.equal(roundtrip(codec, x)[2:].isfinite(), torch.tensor([False, False, True]))


@pytest.mark.parametrize(("x", "exponent"), [([0.0] * 5, 1), ([1e-45] * 5, 1), ([3e38] * 5, 253), ([], 1)])
def test_relative_bounds_are_clamped(x: list[float], exponent: int) -> None:
    assert ErrBound(relative=1.0).encode(torch.tensor(x))[0] == exponent


def test_the_relative_bound_is_the_same_on_every_target_and_number_of_threads(
    laplace: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The share puts the bound as near to a power of two as floats allow: a sum in another order would show.
    rms = math.sqrt(float(laplace.double().square().mean()))
    target = 2.0 ** math.floor(math.log2(0.1 * rms))
    for nudge in range(-3, 4):
        share = float(np.float32(target / rms)) * (1 + nudge * 2.0**-23)
        exponents = set()
        for name in _native.available_targets():
            for threads in ("1", "2", "5"):
                monkeypatch.setenv("GRADWIRE_THREADS", threads)
                with _native.use_target(name):
                    exponents.add(int(ErrBound(relative=share).encode(laplace)[0]))
        assert len(exponents) == 1


def test_a_relative_payload_is_the_absolute_one_behind_its_exponent(laplace: torch.Tensor) -> None:
    relative = ErrBound(relative=0.5).encode(laplace)
    absolute = ErrBound(2.0 ** (int(relative[0]) - 127)).encode(laplace)
    assert torch.equal(relative[1:], absolute)


@pytest.mark.parametrize("exponent", [0, 254, 255])
def test_an_exponent_that_no_encoder_makes_is_refused(exponent: int) -> None:
    payload = torch.tensor([exponent, 0], dtype=torch.uint8)
    with pytest.raises(PayloadError, match="exponent byte"):
        ErrBound(relative=0.05).decode(payload, torch.zeros(4))


def test_unused_tags_must_be_zero() -> None:
    payload = ErrBound(2**-10).encode(torch.zeros(3))
    payload[0] = 1 << 6
    with pytest.raises(PayloadError, match="tag"):
        ErrBound(2**-10).decode(payload, torch.zeros(3))


def test_what_is_not_finite_spoils_only_itself(roundtrip: Roundtrip) -> None:
    x = torch.tensor([0.5, math.nan, 0.25, math.inf, -math.inf])
    y = roundtrip(ErrBound(2**-10), x)
    assert y[1].isnan()
    assert torch.equal(y[[0, 2, 3, 4]], x[[0, 2, 3, 4]])
