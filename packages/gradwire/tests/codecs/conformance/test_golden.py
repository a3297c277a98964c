"""Payloads of installed versions stay readable, and new ones are the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gradwire import _native
from gradwire.codecs import TABLE, Codec

Golden = Callable[[str], list[tuple[Codec, torch.Tensor, bytes]]]
GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = [*(row.name for row in TABLE), "projected", "scaled"]
# The bytes of a Zstandard frame belong to the version of its library; what they decode to does not.
ENCODED_ALIKE = [name for name in NAMES if name != "lossless"]


@pytest.mark.parametrize("target", _native.available_targets())
@pytest.mark.parametrize("name", ENCODED_ALIKE)
def test_encoding_gives_the_golden_bytes(golden: Golden, name: str, target: str) -> None:
    with _native.use_target(target):
        for codec, x, payload in golden(name):
            assert bytes(codec.encode(x).tolist()).hex() == payload.hex(), codec


@pytest.mark.parametrize("name", NAMES)
def test_golden_bytes_decode_within_the_bound(golden: Golden, name: str) -> None:
    for codec, x, payload in golden(name):
        out = torch.full_like(x, 7.0)
        codec.decode(torch.frombuffer(bytearray(payload), dtype=torch.uint8), out)
        finite = x.isfinite() & ~(out.isnan() & (not x.isfinite().all()))
        assert ((out - x).double().abs()[finite] <= codec.bound(x)).all(), codec
        assert not out[~x.isfinite()].isfinite().any(), codec


@pytest.mark.parametrize("target", _native.available_targets())
@pytest.mark.parametrize("name", NAMES)
def test_golden_bytes_decode_to_the_golden_bits(golden: Golden, name: str, target: str) -> None:
    wanted = [each["decoded"] for each in json.loads((GOLDEN / f"{name}.json").read_text())]
    with _native.use_target(target):
        for (codec, x, payload), bits in zip(golden(name), wanted, strict=True):
            out = torch.full_like(x, 7.0)
            codec.decode(torch.frombuffer(bytearray(payload), dtype=torch.uint8), out)
            assert " ".join(f"{word:08x}" for word in out.numpy().view("uint32")) == bits, codec


def test_every_codec_has_vectors_of_finite_and_other_values(golden: Golden) -> None:
    for name in NAMES:
        vectors = golden(name)
        assert {codec.name for codec, _, _ in vectors} == {name}
        assert {bool(x.isfinite().all()) for _, x, _ in vectors} == {True, False}
