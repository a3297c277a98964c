"""Tiles of blocks that share a scale: ROWS blocks of BLOCK values a program, WIDTH of each at a time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.launch import ceil_div
from gradwire.gpu.words import MAGNITUDE, take

SMALLEST_EXPONENT = tl.constexpr(32)  # blocks of smaller exponents (below 2^-95) are flushed to zero
NAN_EXPONENT = tl.constexpr(255)
_WIDEST = 4096
"""Values of a block that registers hold at a time."""


class Tiles:
    """How many programs cover n values, and what they hold."""

    def __init__(self, n: int, block: int, *, size: int = 2048) -> None:
        self.width = min(triton.next_power_of_2(block), _WIDEST)
        # LLVM's AMD backend (Triton 3.7.1) aborts on the reduction of several rows that masks cut.
        rows = max(size // self.width, 1) if self.width == block else 1
        self.programs = ceil_div(n, block * rows)
        warps = min(max(rows * self.width // 512, 1), 8)
        self.constants = {"BLOCK": block, "ROWS": rows, "WIDTH": self.width, "warps": warps}


def split(payload: torch.Tensor, at: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the part that describes the blocks, and the codes."""
    return payload[:at], payload[at:]


@triton.jit
def places(at, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return where the values of a tile are, from the program's first on; the columns begin at ``at``."""
    return tl.arange(0, ROWS)[:, None] * BLOCK + (tl.arange(0, WIDTH) + at)[None, :]


@triton.jit
def inside(at, left, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Return which of them are of their block and of the chunk."""
    columns = (tl.zeros([ROWS, 1], tl.int32) + (tl.arange(0, WIDTH) + at)[None, :]) < BLOCK
    if FULL:
        return columns
    else:
        return columns & (places(at, BLOCK, ROWS, WIDTH) < left)


@triton.jit
def take_tile(x, at, left, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Return the words of a tile, zeros where there are none."""
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    where = places(at, BLOCK, ROWS, WIDTH)
    return take(x, where, inside(at, left, BLOCK, ROWS, WIDTH, FULL), whole)


@triton.jit
def peak_of(tile):
    """Return the largest magnitude of each row, as bits, which are ordered as the magnitudes are."""
    return tl.max((tile & MAGNITUDE).to(tl.int32, bitcast=True), axis=1)


@triton.jit
def exponent_of(peak):
    """Return the exponent byte of a block with this peak."""
    exponent = peak >> 23
    return tl.where(exponent < SMALLEST_EXPONENT, 0, exponent)


@triton.jit
def peak_of_block(x, left, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Return the same of blocks that are wider than a tile."""
    peak = tl.zeros([ROWS], tl.int32)
    for at in range(0, BLOCK if FULL else tl.minimum(left, BLOCK).to(tl.int32), WIDTH):
        peak = tl.maximum(peak, peak_of(take_tile(x, at, left, BLOCK, ROWS, WIDTH, FULL)))
    return peak
