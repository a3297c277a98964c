from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradwire.codecs import parse
from gradwire.codecs.truncate import BitPack
from gradwire.errors import SpecError

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@given(values=arrays.arrays(np.float32, st.integers(0, 70), elements=FINITE))
def test_it_keeps_the_most_significant_bytes(kept: int, values: np.ndarray) -> None:
    codec = BitPack(kept)
    payload = codec.encode(torch.from_numpy(values))
    flag = kept == 1
    parts = values.view(np.uint8).reshape(-1, 4)[:, 4 - kept :]
    assert payload[: len(payload) - flag].tolist() == parts.reshape(-1).tolist()
    out = torch.empty(len(values))
    codec.decode(payload, out)
    mask = np.uint32(0xFFFFFFFF << 8 * (4 - kept) & 0xFFFFFFFF)
    assert np.array_equal(out.numpy().view(np.uint32), values.view(np.uint32) & mask)


@pytest.mark.parametrize("spec", ["bitpack", "bitpack:0", "bitpack:5", "bitpack:2.5", "bitpack:two"])
def test_only_1_to_4_bytes_can_be_kept(spec: str) -> None:
    with pytest.raises(SpecError, match="1 to 4 bytes to keep"):
        parse(spec)
