"""Bitunpack: the most significant bytes of floats, on the device, back to float32.

These are torch's operations on integers and views, so that every device has them. Bytes are little-endian.
"""

from __future__ import annotations

import torch


def bitunpack(payload: torch.Tensor, weights: torch.Tensor, kept_bytes: int) -> None:
    """Write what a payload of ``bitpack`` holds into ``weights`` (contiguous float32, on the same device).

    The result has the bits that the codec's ``decode`` would write: the lower bytes are 0, and for one byte
    a chunk with a non-finite value becomes NaN as a whole.
    """
    flat, count = weights.view(-1), weights.numel()
    if kept_bytes == 4:
        flat.copy_(payload[: 4 * count].view(torch.float32))
        return
    words = flat.view(torch.int32)
    words.copy_(_widened(payload[: kept_bytes * count], kept_bytes))
    words.bitwise_left_shift_(32 - 8 * kept_bytes)
    if kept_bytes == 1:
        flat.masked_fill_(payload[count : count + 1] != 0, torch.nan)


def _widened(payload: torch.Tensor, kept_bytes: int) -> torch.Tensor:
    """Return integers; their sign doesn't matter, because it is shifted out."""
    if kept_bytes == 1:
        return payload
    if kept_bytes == 2:
        return payload.view(torch.int16)
    low, mid, high = payload.view(-1, 3).to(torch.int32).unbind(1)
    return low | mid << 8 | high << 16
