from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import _native
from support import gpu_cases


def check_checksums() -> None:
    from gradwire.gpu import checksum  # imports Triton, which here is the interpreter

    for n in (1, 2, 7, 1024, 1025, 3000, 4096, 4097, 35000, 300_001):
        x = gpu_cases.any_bits(n)
        crc, peak = (int(word.view(torch.int32)) & 0xFFFFFFFF for word in checksum.queue_crc32c(x))
        assert crc == _native.crc32c(x.view(torch.uint8)), n
        assert peak == int(x.view(torch.int32).bitwise_and(0x7FFFFFFF).max()), n


def check_grids_of_grids() -> None:
    from gradwire.gpu import checksum  # imports Triton, which here is the interpreter

    folded, largest = checksum._FOLDED, checksum._LARGEST
    checksum._FOLDED, checksum._LARGEST = 4096, 256
    try:
        for n in (256 * 52, 256 * 52 + 1, 256 * (52 + 3 * checksum._MANY.value) + 7):
            x = gpu_cases.any_bits(n)
            crc, peak = checksum.queue_crc32c(x)
            assert int(crc.view(torch.int32)) & 0xFFFFFFFF == _native.crc32c(x.view(torch.uint8)), n
            assert int(peak.view(torch.int32)) == int(x.view(torch.int32).bitwise_and(0x7FFFFFFF).max()), n
    finally:
        checksum._FOLDED, checksum._LARGEST = folded, largest


def test_long_chunks_are_divided_twice(interpreted: Callable[..., Any]) -> None:
    interpreted(check_grids_of_grids)


def test_it_is_the_crc32c_of_the_chunk_s_bytes(interpreted: Callable[..., Any]) -> None:
    interpreted(check_checksums)


def test_powers_of_x() -> None:
    checksum = pytest.importorskip("gradwire.gpu.checksum")
    ones = [checksum.x_to(each) for each in range(33)]
    assert ones[0] == 0x80000000
    assert ones[32] == 0x82F63B78, "x^32 is what the polynomial says"
    assert checksum.x_to(3000) == checksum._product(checksum.x_to(1000), checksum.x_to(2000))
