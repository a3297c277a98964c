from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs import TABLE
from gradwire.errors import PayloadError
from gradwire.training.sharded.moves_codec import Moves


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=300))
def test_all_bits_come_back(bits: list[int]) -> None:
    x = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    payload, out = Moves().encode(x), torch.full_like(x, 7)
    assert payload.numel() <= Moves().max_nbytes(x.numel())
    Moves().decode(payload, out)
    assert torch.equal(out.view(torch.int32), x.view(torch.int32))


def test_small_moves_take_about_their_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    moved = torch.rand(1 << 18, generator=generator) < 0.05  # entropy 0.286 bits
    payload = Moves().encode(moved.to(torch.int32).view(torch.float32))
    assert 8 * payload.numel() / moved.numel() < 0.31


def test_a_payload_that_is_cut_off_changes_nothing() -> None:
    x, out = torch.arange(1000, dtype=torch.int32).view(torch.float32), torch.full((1000,), 7.0)
    payload = Moves().encode(x)
    for nbytes in (0, 3, payload.numel() // 2, payload.numel() - 1):
        with pytest.raises(PayloadError, match=r"does not tell how 1000 weights move"):
            Moves().decode(payload[:nbytes].clone(), out)
    assert bool((out == 7).all())


def test_its_number_is_its_own() -> None:
    assert Moves.wire_id not in {row.wire_id for row in TABLE}
    assert Moves.from_spec("", {}) == Moves()
