"""CRC32C against published vectors and the definition, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire import _native
from support.cases import for_each

TARGETS = _native.available_targets()

# RFC 3720 (iSCSI), appendix B.4, and the customary check value.
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def bitwise(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def crc32c(data: bytes, seed: int = 0) -> int:
    return _native.crc32c(torch.tensor(list(data), dtype=torch.uint8), seed)


@pytest.mark.parametrize("target", TARGETS)
def test_published_vectors(target: str) -> None:
    with _native.use_target(target):
        assert [crc32c(data) for data, _ in VECTORS] == [expected for _, expected in VECTORS]


@pytest.mark.parametrize("target", TARGETS)
@for_each("nbytes", [*range(1, 40), 383, 384, 385, 800, 6143, 6144, 6145, 7000, 20_000])
def test_every_length_takes_the_definition(nbytes: int, target: str) -> None:
    data = bytes(i * i * 7 % 251 for i in range(nbytes))
    with _native.use_target(target):
        assert crc32c(data) == bitwise(data)


@given(st.binary(max_size=900), st.data())
def test_pieces_continue_each_other(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    for target in TARGETS:
        with _native.use_target(target):
            assert crc32c(data[cut:], crc32c(data[:cut])) == bitwise(data)
