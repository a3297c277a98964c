"""What all codecs share: the fingerprint, and the definition of decode_add."""

from __future__ import annotations

import torch

from gradwire.codecs import Identity, TopK, parse


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
