from __future__ import annotations

import pytest
import torch

from gradwire.errors import SpecError
from gradwire.training.sharded.words import KINDS, kind_of, move, moves, rounded


def place(bits: int, width: int) -> int:
    """A word's place in the order of all words, by the definition: negative ones count down from -1."""
    sign = 1 << (width - 1)
    return bits if bits < sign else -(bits - sign) - 1


def every_bf16() -> torch.Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


def test_every_word_moves_to_every_other_and_by_its_distance() -> None:
    kind, words = KINDS["bf16"], every_bf16()
    new = words[torch.randperm(words.numel(), generator=torch.Generator().manual_seed(0))]
    by = moves(new, words, kind)
    ends, starts = ([place(each & 0xFFFF, 16) for each in these.tolist()] for these in (new, words))
    wanted = [end - start for end, start in zip(ends, starts, strict=True)]
    found = [place(each & 0xFFFFFFFF, 32) for each in by.view(torch.int32).tolist()]
    assert found == wanted
    moved = words.clone()
    move(moved, by, kind)
    assert torch.equal(moved, new)


def test_what_stays_is_zero_and_the_next_float_up_is_the_smallest_above_it() -> None:
    kind = KINDS["bf16"]
    words = rounded(torch.tensor([1.0, -1.0, 0.0]), kind)
    assert moves(words, words, kind).tolist() == [0, 0, 0]
    up = rounded(torch.tensor([1.0 + 2**-7]), kind)
    assert moves(up, words[:1], kind).view(torch.int32).tolist() == [1]
    below = rounded(torch.tensor([-0.0]), kind)
    assert moves(below, words[2:], kind).view(torch.int32).tolist() == [-(1 << 31)], "-0 lies below +0"


def test_float32_words_keep_all_bits_whatever_they_are() -> None:
    kind, generator = KINDS["fp32"], torch.Generator().manual_seed(1)
    low, high = -(1 << 31), 1 << 31
    old, new = torch.randint(low, high, (2, 5000), generator=generator).to(torch.int32)
    moved = old.clone()
    move(moved, moves(new, old, kind), kind)
    assert torch.equal(moved, new)


def test_weights_are_rounded_to_nearest_even() -> None:
    weights = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -2.5e-39])
    assert rounded(weights, KINDS["bf16"]).view(torch.bfloat16).tolist()[:3] == [1.0, 1.0, 1 + 2**-6]
    assert torch.equal(rounded(weights, KINDS["fp32"]).view(torch.float32), weights)


def test_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^replicas must be one of bf16, fp32, but is 'fp16'$"):
        kind_of("fp16")
