from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import _native
from gradwire.codecs import TernGrad
from support import gpu_cases

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


def drawn(key: int, place: int) -> int:
    """Return the 24 bits of SplitMix64 that decide about a place."""
    z = key + (place + 1) * GOLDEN & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return (z ^ z >> 31) >> 40


def key_that_draws_0(place: int) -> int:
    """Return a key that draws 0 at one place: SplitMix64 from its end to its beginning."""
    z = 0xABCDE ^ 0xABCDE >> 31
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & WORD
    z ^= z >> 27 ^ z >> 54
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & WORD
    z ^= z >> 30 ^ z >> 60
    return z - (place + 1) * GOLDEN & WORD


def check_near(scales: list[float]) -> None:
    """Compare with the host where each value is within two floats of what its random number asks for.

    The random numbers depend on a chunk's checksum, so that its seed can choose them afterwards.
    """
    for scale in np.array(scales, np.float32):
        key = key_that_draws_0(7)
        numbers = np.array([drawn(key, place) for place in range(1100)], np.float64)
        assert numbers[7] == 0, "what is below this number is above 0, once divided"
        bits = (numbers * 2.0**-24 * np.float64(scale)).astype(np.float32).view(np.int32)
        x = np.maximum(bits + np.arange(numbers.size, dtype=np.int32) % 5 - 2, 0).view(np.float32)
        x[:16] = scale * np.linspace(1.0, 0.0, 16, dtype=np.float32)
        least = scale * np.float32(2.0**-75) * np.float32(2.0**-75)
        for x[7] in (0.0, least, np.nextafter(least, scale), 2.0**-149, 2.0**-148):
            chunk = torch.from_numpy(np.where(np.arange(x.size) % 2, -x, x))
            codec = TernGrad(seed=key ^ _native.crc32c(chunk.view(torch.uint8)))
            gpu_cases.check_chunk(codec, chunk)


def check_programs() -> None:
    """Compare with the host chunks of one whole program, of whole ones, and of more."""
    for n in (2048, 4096, 4999):
        gpu_cases.check_chunk(TernGrad(seed=n), gpu_cases.gradients_of_layers(n).nan_to_num(posinf=1.0))


def test_chunks_of_several_programs(interpreted: Callable[..., Any]) -> None:
    interpreted(check_programs)


@pytest.mark.parametrize("spec", TernGrad.EXAMPLES)
def test_the_bytes_are_the_host_s(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(gpu_cases.check_chunks, spec)
    interpreted(gpu_cases.check_malformed, spec)


@pytest.mark.parametrize(
    "scales",
    [
        [1.0, 1.7, 2.0 - 2.0**-23, 2.0, 2.0 + 2.0**-22, 3.0],
        [2.0**24 - 1.0, 2.0**24, 1.7e7, 1e20, 3.4028235e38],
        [2.0**-63, 2.0**-64 * (2 - 2.0**-23), 2.0**-64, 2.0**-65 * (2 - 2.0**-23), 1e-25, 2.0**-100],
        [2.0**-126, 1.7e-38, 1e-40, 7e-45, 2.0**-148, 2.0**-149],
    ],
)
def test_values_next_to_their_random_numbers(interpreted: Callable[..., Any], scales: list[float]) -> None:
    interpreted(check_near, scales)
