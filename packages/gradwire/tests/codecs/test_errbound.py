"""The four classes by arithmetic in double precision; bounds, bias and ratio on gradient-like data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import _native
from gradwire.codecs import Codec, ErrBound, Inceptionn, parse
from gradwire.errors import PayloadError, SpecError

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


def encode_relative(x: torch.Tensor, codec: ErrBound) -> bytes:
    """Exponents, tags and data of all blocks by the formula; a chunk without blocks is one."""
    exponents, tags, data = b"", b"", b""
    block = codec.block or max(x.numel(), 1)
    for first in range(0, x.numel() if codec.block else max(x.numel(), 1), block):
        part = x[first : first + block]
        exponent = exponent_of(part, codec)
        payload = encode(part, 2.0 ** (exponent - 127))
        exponents += bytes([exponent])
        tags += payload[: -(-part.numel() // 4)]
        data += payload[-(-part.numel() // 4) :]
    return exponents + tags + data


def exponent_of(part: torch.Tensor, codec: ErrBound) -> int:
    finite = [value for value in part.tolist() if math.isfinite(value)]
    if not any(finite):
        return 1
    rms = math.sqrt(math.fsum(value * value for value in finite) / len(finite))
    return min(max(math.floor(math.log2(float(np.float32(codec.relative)) * rms)) + 127, 1), 253)


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
            assert encode_relative(x, codec) == payload
            exponents = payload[: -(-x.numel() // codec.block) if codec.block else 1]
            assert max(exponents) - 127 == math.log2(codec.bound(x))


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


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("block", [None, 64, 128])
def test_relative_payloads_are_those_of_the_formula(
    block: int | None, n: int, every_class: torch.Tensor
) -> None:
    for share in (0.002, 0.25):
        codec = ErrBound(relative=share, block=block)
        assert bytes(codec.encode(every_class[:n]).tolist()) == encode_relative(every_class[:n], codec)


@st.composite
def layers(draw: st.DrawFn) -> torch.Tensor:
    """Up to five blocks of 64 values of very different sizes, in which any bits may turn up."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    exponents = np.array(draw(st.lists(st.integers(-145, 120), max_size=5)), dtype=np.int64)
    n = max(64 * len(exponents) - draw(st.integers(0, 63)), 0)
    x = np.ldexp(rng.normal(size=n), np.repeat(exponents, 64)[:n]).astype(np.float32)
    if n:
        guests = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 2**32 - 1)), max_size=9))
        for at, bits in guests:
            x.view(np.uint32)[at] = bits
    return torch.from_numpy(x)


@settings(deadline=None)
@given(x=layers(), share=st.sampled_from([2.0**-24, 0.05, 0.25, 1.0]))
def test_every_block_keeps_its_own_bound(x: torch.Tensor, share: float) -> None:
    codec = ErrBound(relative=share, block=64)
    payload, y = codec.encode(x), torch.full_like(x, 7.0)
    codec.decode(payload, y)
    bounds = torch.tensor([2.0 ** (int(each) - 127) for each in payload[: -(-x.numel() // 64)]])
    finite = x.isfinite()
    error = torch.where(finite, y.double() - x.double(), 0.0).abs()
    assert (error <= bounds.double().repeat_interleave(64)[: x.numel()]).all()
    assert torch.equal(y[~finite].view(torch.int32), x[~finite].view(torch.int32))
    zero = not x[finite].any()
    assert codec.bound(x) == (0.0 if zero else float(bounds.max()))


def test_a_tiny_block_beside_a_huge_one_keeps_its_precision(
    normal: torch.Tensor, roundtrip: Roundtrip
) -> None:
    unit = normal[:2048] / normal[:2048].square().mean().sqrt()
    x = torch.cat([1e-12 * unit, 1e3 * unit])
    for spec in ("errbound:rel=0.25,block=1024", "errbound:rel=0.25,block=64"):
        error = (roundtrip(parse(spec), x) - x).double().view(2, -1).square().mean(dim=1).sqrt()
        assert error[0] <= 0.25e-12
        assert error[1] <= 0.25e3
    shared = roundtrip(parse("errbound:rel=0.25"), x)
    assert not shared[:2048].any(), "one bound for both leaves nothing of the small one"
    assert parse("errbound:rel=0.25,block=1024").bound(x) == parse("errbound:rel=0.25").bound(1e3 * unit)


def test_blocks_cost_next_to_nothing_where_all_values_are_alike(laplace: torch.Tensor) -> None:
    alone, in_blocks = parse("errbound:rel=0.25").encode(laplace), parse("errbound:rel=0.25,block=1024")
    assert in_blocks.encode(laplace).numel() < 1.01 * alone.numel()


def test_no_values_in_blocks_are_no_bytes() -> None:
    codec = ErrBound(relative=0.25, block=64)
    assert codec.max_nbytes(0) == 0
    assert codec.encode(torch.empty(0)).numel() == 0
    assert codec.bound(torch.empty(0)) == 0.0


def test_specs_with_blocks_come_back_and_others_are_as_they_were() -> None:
    assert str(parse("errbound:rel=0.05")) == "errbound:rel=0.05"
    assert str(parse("errbound:block=64,rel=2^-2")) == "errbound:rel=0.25,block=64"
    assert parse("errbound:rel=0.25,block=64") == ErrBound(relative=0.25, block=64)
    assert parse("errbound:rel=0.25,block=64").fingerprint != parse("errbound:rel=0.25").fingerprint


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("errbound:2^-10,block=1024", "expected rel= with block=, got 'errbound:2^-10,block=1024'"),
        ("errbound:block=1024", "or rel= with a share of each chunk's root mean square, after a colon"),
        ("errbound:rel=0.25,block=100", "a power of two from 64 to 65536, got 100"),
        ("errbound:rel=0.25,block=32", "a power of two from 64 to 65536, got 32"),
        ("errbound:rel=0.25,block=131072", "a power of two from 64 to 65536, got 131072"),
        ("errbound:rel=0.25,block=0", "a power of two from 64 to 65536, got 0"),
        ("errbound:rel=0.25,block=1e3", "a power of two from 64 to 65536, got '1e3'"),
        ("errbound:rel=0.25,block=64,size=1", "unexpected size=1"),
    ],
)
def test_a_bad_block_gets_one_sentence(spec: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint.replace("^", r"\^")) as caught:
        parse(spec)
    assert "for example, write 'errbound:rel=0.25,block=1024'" in str(caught.value)


def test_the_constructor_refuses_blocks_that_are_no_whole_number() -> None:
    for block in (64.0, True, "64"):
        with pytest.raises(SpecError, match="a power of two from 64 to 65536"):
            ErrBound(relative=0.25, block=block)  # type: ignore[arg-type]
