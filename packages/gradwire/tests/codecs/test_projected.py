"""What ranks send when NICs may encode: the floats that the codec decodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradwire import _native
from gradwire.codecs import TABLE, Codec, parse
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.wrappers import Projected, offloadable
from gradwire.errors import PayloadError, SpecError

SPECS = [spec for row in TABLE for spec in row.codec.EXAMPLES]
OFFLOADABLE = [
    spec for spec in SPECS if isinstance(codec := parse(spec), NativeCodec) and codec.is_offloadable
]
LENGTHS = (0, 1, 7, 8, 9, 4095, 4096, 4097, 12_345)
THREADED = 3 * (1 << 17) + 5
"""Long enough for three threads."""


def values(n: int) -> torch.Tensor:
    rng = np.random.default_rng(n)
    found = (rng.laplace(0.0, 1e-2, n) * 10.0 ** rng.integers(-4, 4, n)).astype(np.float32)
    found[::97] = rng.choice(
        np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45, -3e38], np.float32), len(found[::97])
    )
    return torch.from_numpy(found)


def bits(x: torch.Tensor) -> bytes:
    return x.numpy().tobytes()


def roundtrip(codec: Codec, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    codec.decode(codec.encode(x), out)
    return out


@pytest.mark.parametrize("spec", OFFLOADABLE)
def test_the_payload_is_what_the_codec_decodes_and_loses_nothing_more(spec: str) -> None:
    codec = parse(spec)
    projected = Projected(offloadable(codec))
    for n in (*LENGTHS, THREADED):
        x = values(n)
        before, payload = bits(x), projected.encode(x)
        assert bits(payload) == bits(roundtrip(codec, x))
        assert bits(x) == before
        assert projected.max_nbytes(n) == payload.numel() == 4 * n
        sent = roundtrip(projected, x)
        assert bits(sent) == bits(payload)
        assert bits(roundtrip(codec, sent)) == bits(sent), "a NIC with the codec changes nothing"
        assert bits(roundtrip(projected, sent)) == bits(sent)


@pytest.mark.parametrize("target", _native.available_targets())
def test_every_target_and_place_in_memory_gives_the_same_floats(target: str) -> None:
    codec, x = Projected(offloadable(parse("inceptionn:2^-10"))), values(10_001)
    wanted = bits(roundtrip(codec.codec, x))
    with _native.use_target(target):
        for shift in range(4):
            memory = torch.zeros(4 * len(x) + 8, dtype=torch.uint8)
            assert bits(codec.encode(x, memory[shift:-4])) == wanted
            assert not memory[:shift].any()
            assert not memory[shift + 4 * len(x) :].any()


def test_sums_add_the_floats_as_they_are() -> None:
    codec, x, acc = Projected(offloadable(parse("truncate:16"))), values(1000), values(1000).flip(0)
    wanted = acc + roundtrip(codec, x)
    codec.decode_add(codec.encode(x), acc)
    assert bits(acc) == bits(wanted)


def test_it_is_bounded_as_its_codec() -> None:
    x = values(1000)
    for spec in OFFLOADABLE:
        assert Projected(offloadable(parse(spec))).bound(x) == parse(spec).bound(x)
    assert Projected(offloadable(parse("truncate:16"))).sends_floats


def test_a_payload_of_another_length_is_refused_and_writes_nothing() -> None:
    codec, out = Projected(offloadable(parse("inceptionn:2^-10"))), torch.full((10,), 7.0)
    for nbytes in (0, 39, 41, 44):
        for decode in (codec.decode, codec.decode_add):
            with pytest.raises(PayloadError):
                decode(torch.zeros(nbytes, dtype=torch.uint8), out)
    assert torch.equal(out, torch.full((10,), 7.0))


def test_equal_codecs_have_equal_fingerprints_and_others_do_not() -> None:
    one, same, other = (Projected(offloadable(parse(f"inceptionn:2^-{k}"))) for k in (10, 10, 9))
    assert one == same
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert one.fingerprint != parse("inceptionn:2^-10").fingerprint


@pytest.mark.parametrize("spec", sorted({*SPECS} - {*OFFLOADABLE}))
def test_codecs_that_need_more_than_one_value_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match=r"expected a codec that NICs can apply.*use inceptionn, or trunc"):
        offloadable(parse(spec))
