"""Bitunpack: the most significant bytes of floats, on the device, back to float32.

These are torch's operations on integers and views, so that every device has them. Bytes are little-endian.
"""

from __future__ import annotations

import torch

_NAN = 0x7FC0_0000
"""The bits that make a NaN of any float."""


def bitunpack(payload: torch.Tensor, weights: torch.Tensor, kept_bytes: int) -> None:
    """Write what a payload of ``bitpack`` holds into ``weights`` (contiguous float32, on the same device).

    The result has the bits that the codec's ``decode`` would write: the lower bytes are 0, and for one byte
    a chunk with a non-finite value becomes NaN as a whole.
    """
    flat, count = weights.view(-1), weights.numel()
    if not count:
        return  # torch views no bytes of some empty tensors
    words = flat.view(torch.int32)
    if kept_bytes == 4:
        flat.copy_(payload[: 4 * count].view(torch.float32))
    elif kept_bytes == 3:  # bytes to bytes: to gather integers of three takes ten times as long on a CPU
        of_words = flat.view(torch.uint8).view(count, 4)
        of_words[:, 0] = 0
        of_words[:, 1:] = payload[: 3 * count].view(count, 3)
    elif kept_bytes == 2:
        words.copy_(payload[: 2 * count].view(torch.int16)).bitwise_left_shift_(16)
    else:
        words.copy_(payload[:count]).bitwise_left_shift_(24)
        words.bitwise_or_((payload[count : count + 1] != 0).to(torch.int32) * _NAN)
