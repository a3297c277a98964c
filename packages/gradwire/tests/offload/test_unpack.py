from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs.truncate import BitPack
from gradwire.offload.carriers import bitunpack


@pytest.mark.parametrize("kept_bytes", [1, 2, 3, 4])
@given(
    words=st.lists(
        st.integers(0, 2**32 - 1) | st.sampled_from([0x7F800000, 0xFFC00001, 0x80000000]), max_size=40
    )
)
def test_it_has_the_bits_that_the_codec_decodes(kept_bytes: int, words: list[int]) -> None:
    floats = torch.from_numpy(np.array(words, np.uint32).view(np.float32))
    codec = BitPack(kept_bytes)
    payload, expected, found = codec.encode(floats), torch.empty_like(floats), torch.full_like(floats, 3.0)
    codec.decode(payload, expected)
    bitunpack(payload, found, kept_bytes)
    if expected.isnan().all():
        assert found.isnan().all()
    else:
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_the_bytes_that_were_kept_are_the_upper_ones() -> None:
    floats = torch.randn(33)
    for kept_bytes in (1, 2, 3):
        found = torch.empty(3, 11)
        bitunpack(BitPack(kept_bytes).encode(floats), found, kept_bytes)
        mask = -1 << 32 - 8 * kept_bytes
        assert torch.equal(found.view(-1).view(torch.int32), floats.view(torch.int32) & mask)
