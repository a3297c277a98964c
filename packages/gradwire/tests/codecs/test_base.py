"""What all codecs share: the fingerprint, and the definition of decode_add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gradwire.codecs import TABLE, Identity, TopK, parse
from gradwire.errors import SpecError, TensorError


def crc32c(data: bytes) -> int:
    """CRC32C a bit at a time: reflected polynomial 0x82F63B78, all ones before and after."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def test_the_oracle_knows_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE306_9283


def test_the_fingerprint_is_the_crc32c_of_the_spec() -> None:
    for spec in ("identity", "errbound:2^-10", "quantize:4,block=48"):
        assert parse(spec).fingerprint == crc32c(spec.encode())


def test_adding_what_was_dropped_is_an_addition_too() -> None:
    payload = TopK(0.5).encode(torch.tensor([1.0, 0.25]))
    acc = torch.tensor([1.0, -0.0])
    TopK(0.5).decode_add(payload, acc)
    assert acc.view(torch.int32).tolist() == torch.tensor([2.0, 0.0]).view(torch.int32).tolist()


def test_identity_carries_every_bit() -> None:
    patterns = torch.tensor([0x7F800001, -1, -0x80000000, 0x00000001], dtype=torch.int32)
    out = torch.zeros(4)
    Identity().decode(Identity().encode(patterns.view(torch.float32)), out)
    assert torch.equal(out.view(torch.int32), patterns)


ONE_OF_EACH = [row.codec.EXAMPLES[0] for row in TABLE]
VALUES = [1.0, -0.5, 0.25, 0.0]


@pytest.mark.parametrize("spec", ONE_OF_EACH)
def test_tensors_of_autograd_and_of_inference_are_tensors_like_others(spec: str) -> None:
    codec, x = parse(spec), torch.tensor(VALUES)
    payload, wanted = codec.encode(x), torch.zeros(4)
    codec.decode(payload, wanted)
    with torch.inference_mode():
        frozen, memory = x.clone(), torch.empty(codec.max_nbytes(4) + 9, dtype=torch.uint8)
        targets = [torch.zeros(5)[1:], torch.zeros(5)[1:]]
    targets += [torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)]
    for source in (frozen, x.clone().requires_grad_()):
        assert torch.equal(codec.encode(source, out=memory), payload)
        assert codec.bound(source) == codec.bound(x)
    for decoded, added in (targets[:2], targets[2:]):
        codec.decode(payload, decoded)
        codec.decode_add(payload, added)
        assert torch.equal(decoded, wanted)
        assert torch.equal(added, wanted)


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Make another device than the CPU the default, as programs for GPUs do."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("spec", ONE_OF_EACH)
def test_the_default_device_is_none_of_a_codecs_business(spec: str) -> None:
    codec = parse(spec)
    x, out = torch.tensor(VALUES, device="cpu"), torch.zeros(4, device="cpu")
    payload = codec.encode(x)
    codec.decode(payload, out)
    codec.decode_add(payload, out)
    assert payload.device.type == "cpu"
    assert codec.bound(x) >= 0.0
    assert codec.fingerprint > 0


def test_a_view_that_only_claims_to_be_negated_is_refused() -> None:
    x = torch.tensor([1 + 2j]).conj().imag
    assert x.is_neg()
    with pytest.raises(TensorError, match=r"expected a materialized tensor for x, .*\.clone\(\)"):
        Identity().encode(x)


@pytest.mark.parametrize("spec", [None, 5, b"fp16", ["fp16"]])
def test_what_is_no_text_is_no_spec(spec: object) -> None:
    with pytest.raises(SpecError, match="expected a spec such as"):
        parse(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ONE_OF_EACH)
def test_adding_keeps_subnormals_where_the_caller_flushes_them(spec: str) -> None:
    codec, x = parse(spec), torch.tensor([1e-39, -3e-40, 2e-38, 0.0])
    payload = codec.encode(x)
    kept, flushed = torch.full((4,), 1e-40), torch.full((4,), 1e-40)
    codec.decode_add(payload, kept)
    assert torch.set_flush_denormal(True)
    try:
        codec.decode_add(payload, flushed)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(flushed.view(torch.int32), kept.view(torch.int32))


@pytest.mark.parametrize(
    "acc", [torch.ones(2, 3).t(), torch.ones(6, dtype=torch.float64), torch._neg_view(-torch.ones(6))]
)
def test_who_does_what_a_refusal_says_has_the_result(acc: torch.Tensor) -> None:
    payload = Identity().encode(torch.arange(6.0))
    with pytest.raises(TensorError) as caught:
        Identity().decode_add(payload, acc)
    advice = re.search(r"create (flat = .*), pass flat, and read the result from flat$", str(caught.value))
    assert advice is not None
    names: dict[str, Any] = {"acc": acc, "torch": torch}
    exec(advice[1], names)
    Identity().decode_add(payload, names["flat"])
    assert names["flat"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_memory_that_was_freed_is_refused() -> None:
    freed = torch.ones(6)
    payload = Identity().encode(freed)
    freed.untyped_storage().resize_(0)
    for call in (Identity().encode, lambda x: Identity().decode(payload, x)):
        with pytest.raises(TensorError, match="expected a materialized tensor"):
            call(freed)
