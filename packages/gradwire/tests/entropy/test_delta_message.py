"""A message of several tensors has the payloads that each would have alone, and is refused as they are."""

from __future__ import annotations

import math

import pytest
import torch

from gradwire import _native
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import WordName, apply_message, encode_message, words_dtype
from gradwire.errors import PayloadError, SpecError, TensorError, VersionError

COUNTS = (0, 1, 17, 5000, 300)
WHOLE = 3
"""Which one travels as it is."""


class Pair:
    """Both ends of messages of several tensors."""

    def __init__(self, dtype: WordName) -> None:
        generator = torch.Generator().manual_seed(1)
        self.dtype = dtype
        self.masters = [torch.randn(each, generator=generator) for each in COUNTS]
        self.encoders = [
            None if each == WHOLE else DeltaEncoder(self.masters[each], dtype) for each in range(5)
        ]
        self.decoders = [DeltaDecoder(dtype) for _ in range(4)]
        self.weights = [torch.full((each,), math.nan, dtype=words_dtype(dtype)) for each in COUNTS]
        del self.weights[WHOLE]

    def encode(self, version: int, *, full: bool = False) -> tuple[torch.Tensor, list[tuple[int, int]]]:
        out = torch.full((80_000,), 255, dtype=torch.uint8)
        spans = encode_message(
            self.masters,
            self.encoders,
            version,
            out,
            self.dtype,
            full=full,
            checked=version % 2 == 0,
            align=16,
        )
        return out, spans

    def apply(self, message: torch.Tensor, spans: list[tuple[int, int]]) -> None:
        apply_message(message, spans[:WHOLE] + spans[WHOLE + 1 :], self.decoders, self.weights)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_message_has_the_payloads_that_tensors_have_alone(dtype: WordName) -> None:
    for target in _native.available_targets():
        with _native.use_target(target):
            pair = Pair(dtype)
            alone = [DeltaEncoder(each, dtype) for each in pair.masters]
            for version, full in ((1, False), (2, False), (5, True), (6, False)):
                message, spans = pair.encode(version, full=full)
                assert all(begin % 16 == 0 for begin, _ in spans)
                for number, (begin, end) in enumerate(spans):
                    payload = alone[number].encode(
                        pair.masters[number], version, full=full, checked=version % 2 == 0
                    )
                    if number == WHOLE:
                        payload = pair.masters[number].view(torch.uint8)
                    assert torch.equal(message[begin:end], payload)
                assert int(message[spans[-1][1] :].min()) == 255, "nothing is written behind a message"
                pair.apply(message, spans)
                held = [each.to(words_dtype(dtype)) for n, each in enumerate(pair.masters) if n != WHOLE]
                assert all(torch.equal(a, b) for a, b in zip(pair.weights, held, strict=True))
                assert {each.version for each in pair.decoders} == {version}
                for each in pair.masters:
                    each.mul_(1.0001)


def test_what_is_refused_leaves_its_weights_and_its_version() -> None:
    pair = Pair("bf16")
    pair.apply(*pair.encode(1))
    before = [each.clone() for each in pair.weights]
    for each in pair.masters:
        each.add_(1)
    message, spans = pair.encode(3)
    begin, end = spans[-1]
    message[begin + 28 : end] = 255
    with pytest.raises(PayloadError, match=rf"300 weights, got an invalid body of {end - begin - 28} "):
        pair.apply(message, spans)
    assert torch.equal(pair.weights[-1], before[-1])
    assert [each.version for each in pair.decoders] == [3, 3, 3, 1]
    with pytest.raises(
        VersionError, match="a delta from version 3 or a full copy, got a delta from version 1"
    ):
        pair.apply(message, spans)
    pair.apply(*pair.encode(4, full=True))
    assert torch.equal(pair.weights[-1], pair.masters[-1].bfloat16())


def test_wrong_weights_are_found_by_their_hash() -> None:
    pair = Pair("bf16")
    pair.apply(*pair.encode(1))
    pair.weights[2][0] += 1
    with pytest.raises(VersionError, match="expected the weights of version 2"):
        pair.apply(*pair.encode(2))
    assert [each.version for each in pair.decoders] == [2, 2, None, 2]


def test_all_wrong_weights_are_found_also_beside_an_invalid_payload() -> None:
    pair = Pair("bf16")
    pair.apply(*pair.encode(1))
    for each in pair.weights[1:3]:
        each[0] += 1
    message, spans = pair.encode(2)
    begin, end = spans[-1]
    message[begin + 36 : end] = 255
    with pytest.raises(PayloadError, match="300 weights, got an invalid body"):
        pair.apply(message, spans)
    assert [each.version for each in pair.decoders] == [2, None, None, 1]


def test_wrong_masters_are_refused_before_any_is_encoded() -> None:
    pair = Pair("bf16")
    pair.encode(1)
    pair.masters[4] = torch.zeros(299)
    with pytest.raises(SpecError, match="expected 300 master weights"):
        pair.encode(2, full=True)
    pair.masters[4] = torch.zeros(300).double()
    with pytest.raises(TensorError, match=r"expected a .* for masters, got"):
        pair.encode(2, full=True)
    assert [each.version for each in pair.encoders if each is not None] == [1] * 4
    assert pair.encoders[2] is not None
    assert torch.equal(pair.encoders[2].base, pair.masters[2].bfloat16())
