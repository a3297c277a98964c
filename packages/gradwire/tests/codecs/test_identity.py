from __future__ import annotations

import struct

import pytest
import torch

from gradwire.codecs import Identity, parse
from gradwire.errors import SpecError

BITS = [0x00000000, 0x80000000, 0x00000001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345]


def test_every_bit_is_carried_of_nans_too() -> None:
    payload = struct.pack("<8I", *BITS)
    x = torch.frombuffer(bytearray(payload), dtype=torch.float32)
    encoded = Identity().encode(x)
    assert bytes(encoded.tolist()) == payload
    back = torch.empty(8)
    Identity().decode(encoded, back)
    assert torch.equal(back.view(torch.int32), x.view(torch.int32))


def test_it_loses_nothing_and_has_no_options() -> None:
    assert Identity().bound(torch.tensor([1e38])) == 0.0
    assert Identity().max_nbytes(1000) == 4000
    assert parse("identity") == Identity()
    with pytest.raises(SpecError, match="identity"):
        parse("identity:8")
