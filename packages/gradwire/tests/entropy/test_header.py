"""The header of a delta, byte by byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.entropy.delta import DeltaHeader
from gradwire.errors import PayloadError

NUMBERS = st.integers(0, 2**64 - 1)


def read(data: bytes) -> DeltaHeader:
    return DeltaHeader.read(torch.tensor(list(data), dtype=torch.uint8))


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def test_bytes_are_those_of_the_page() -> None:
    delta = DeltaHeader(word_nbytes=2, n=1000, version=8, base=7, check=None)
    assert delta.write() == bytes([1, 2, 0, 0]) + number(1000) + number(7) + number(8)
    checked = DeltaHeader(word_nbytes=4, n=5, version=8, base=7, check=99)
    assert checked.write() == bytes([1, 4, 2, 0]) + number(5) + number(7) + number(8) + number(99)
    full = DeltaHeader(word_nbytes=2, n=5, version=8, base=None, check=None)
    assert full.write() == bytes([1, 2, 1, 0]) + number(5) + number(0) + number(8)
    plain = DeltaHeader(word_nbytes=2, n=5, version=8, base=None, check=99, plain=True)
    assert plain.write() == bytes([1, 2, 7, 0]) + number(5) + number(0) + number(8) + number(99)


@given(NUMBERS, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS, st.booleans(), st.binary(max_size=20))
def test_any_header_comes_back(
    n: int, version: int, base: int | None, check: int | None, plain: bool, body: bytes
) -> None:
    header = DeltaHeader(2, n, version, base, check, plain and base is None)
    assert read(header.write() + body) == header
    assert header.nbytes == len(header.write())


def test_truncated_headers_are_refused() -> None:
    data = DeltaHeader(word_nbytes=2, n=1, version=2, base=1, check=3).write()
    for nbytes in range(len(data)):
        with pytest.raises(PayloadError, match=r"its (header of 28 bytes|hash) is truncated"):
            read(data[:nbytes])


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, 2, "expected the format version 1, got 2"),
        (2, 4, "unused bits"),  # plain, but no full copy
        (2, 6, "unused bits"),
        (2, 8, "unused bits"),
        (2, 1, "unused bits"),  # a full copy with a base
        (3, 1, "unused bits"),
    ],
)
def test_malformed_headers_are_refused(place: int, value: int, reason: str) -> None:
    data = bytearray(DeltaHeader(word_nbytes=2, n=1, version=2, base=1, check=None).write())
    data[place] = value
    with pytest.raises(PayloadError, match=reason):
        read(bytes(data))
