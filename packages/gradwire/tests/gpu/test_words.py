from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradwire import gpu
from gradwire.codecs import Identity


def check_sums() -> None:
    values = [0x00000001, 0x80000000, 0x3F800001, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00007, 0x7F7FFFFF]
    left = np.repeat(np.array(values, np.uint32), 8)
    right = np.tile(np.array(values, np.uint32), 8)
    total = torch.from_numpy(left.copy()).view(torch.float32)
    gpu.decode_add(Identity(), torch.from_numpy(right).view(torch.uint8), total).check()
    sums = total.view(torch.uint32).tolist()
    for a, b, found in zip(left.tolist(), right.tolist(), sums, strict=True):
        assert found == expected(a, b), (hex(a), hex(b), hex(found))


def expected(a: int, b: int) -> int:
    for nan in (a, b):
        if nan & 0x7FFFFFFF > 0x7F800000:
            return nan | 0x400000
    if {a, b} == {0x7F800000, 0xFF800000}:
        return 0xFFC00000
    with np.errstate(over="ignore"):
        total = np.uint32(a).view(np.float32) + np.uint32(b).view(np.float32)
    return int(np.float32(total).view(np.uint32))


def test_sums_have_the_bits_of_the_host(interpreted: Callable[..., Any]) -> None:
    interpreted(check_sums)
