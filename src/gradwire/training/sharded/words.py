"""Weights as words, and how far they have moved: whole numbers in the total order of the words' values.

In that order -0 lies below +0 and every NaN has its place, so a difference of two words says everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from gradwire.errors import SpecError, shown


@dataclass(frozen=True)
class WordKind:
    """What every rank holds of a weight: ``dtype`` as it is computed with, and ``bits`` as it is kept."""

    dtype: torch.dtype
    bits: torch.dtype
    below_sign: int


KINDS: Final = {
    "bf16": WordKind(torch.bfloat16, torch.int16, 0x7FFF),
    "fp32": WordKind(torch.float32, torch.int32, 0x7FFF_FFFF),
}


def kind_of(name: str) -> WordKind:
    """Return the kind of words of that name. Raises ``SpecError``."""
    if name not in KINDS:
        raise SpecError(f"replicas must be one of {', '.join(KINDS)}, but is {shown(name)}")
    return KINDS[name]


def rounded(weights: torch.Tensor, kind: WordKind) -> torch.Tensor:
    """Return the words of float32 weights, rounded to nearest even."""
    return weights.to(kind.dtype).view(kind.bits)


def moves(new: torch.Tensor, old: torch.Tensor, kind: WordKind) -> torch.Tensor:
    """Return how far each word has moved, as the float32 that lies so far from +0 in the order of floats.

    So a word that stays is +0, and one that moves up by 1 is the smallest float above.
    """
    distance = _ordered(new, kind) - _ordered(old, kind)
    return _ordered(distance, KINDS["fp32"]).view(torch.float32)


def move(words: torch.Tensor, by: torch.Tensor, kind: WordKind) -> None:
    """Move words, in place, by what ``moves`` has found."""
    places = _ordered(words, kind) + _ordered(by.view(torch.int32), KINDS["fp32"])
    words.copy_(_ordered(places, kind))


def _ordered(words: torch.Tensor, kind: WordKind) -> torch.Tensor:
    """Return the places of words in the order, or the words at these places: int32 both ways."""
    signed = words.to(torch.int32)
    return signed ^ ((signed >> 31) & kind.below_sign)
