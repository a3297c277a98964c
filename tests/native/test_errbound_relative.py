"""errbound's relative mode: the bound follows the RMS of the chunk, alike on all targets and threads."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gradwire import _native


def encode(x: npt.NDArray[np.float32], fraction: float) -> bytes:
    params = (0, int(np.float32(fraction).view(np.int32)))
    out = torch.empty(_native.max_nbytes("errbound", len(x), params), dtype=torch.uint8)
    return out[: _native.encode("errbound", torch.from_numpy(x.copy()), out, params)].numpy().tobytes()


def encode_absolute(x: npt.NDArray[np.float32], exponent: int) -> bytes:
    out = torch.empty(_native.max_nbytes("errbound", len(x), (exponent,)), dtype=torch.uint8)
    return out[: _native.encode("errbound", torch.from_numpy(x.copy()), out, (exponent,))].numpy().tobytes()


def encode_on_all_targets(x: npt.NDArray[np.float32], fraction: float) -> bytes:
    payloads = []
    for name in _native.available_targets():
        with _native.use_target(name):
            payloads.append(encode(x, fraction))
    assert all(payload == payloads[0] for payload in payloads)
    return payloads[0]


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("scale", [1e-41, 1e-30, 1e-3, 1.0, 1e30])
@pytest.mark.parametrize("n", [1, 7, 15, 16, 17, 1000, 65536, 65537, 400_001])
def test_bound_is_the_power_of_two_below_its_share_of_the_rms(
    n: int, scale: float, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_THREADS", threads)
    x = (np.random.default_rng(n).laplace(size=n) * scale).astype(np.float32)
    rms = math.sqrt(math.fsum((x.astype(np.float64) ** 2).tolist()) / n)
    wanted = np.clip(math.floor(math.log2(np.float32(0.05) * rms)) + 127, 1, 253) if rms > 0 else 1
    payload = encode_on_all_targets(x, 0.05)
    assert payload[0] == wanted
    assert payload[1:] == encode_absolute(x, payload[0])


def test_sum_is_rounded_in_sixteen_lanes_as_documented() -> None:
    # Each lane starts with two values whose squares add up to just less than 1; the squares that follow are
    # too small to count one by one, yet together they would lift the exact sum above 16.
    x = np.full(65536, 2.0**-28, np.float32)
    x[:16] = 1 - 2.0**-24
    x[16:32] = np.nextafter(np.float32(2.0**-11.5), np.float32(0))
    assert math.fsum((x.astype(np.float64) ** 2).tolist()) > 16
    assert encode_on_all_targets(x, 1.0)[0] == 127 - 6 - 1  # RMS just below 2^-6


def test_non_finite_values_are_left_out_and_zeros_take_the_smallest_bound() -> None:
    assert encode_on_all_targets(np.zeros(100, np.float32), 1.0)[0] == 1
    assert encode_on_all_targets(np.full(100, np.nan, np.float32), 1.0)[0] == 1
    assert encode_on_all_targets(np.zeros(0, np.float32), 1.0) == bytes([1])
    x = np.full(101, 0.5, np.float32)
    x[[3, 50, 100]] = [np.inf, np.nan, -np.inf]
    assert encode_on_all_targets(x, 1.0)[0] == 126
    assert encode_on_all_targets(x, 0.25)[0] == 124
    assert encode_on_all_targets(np.full(33, 3.4e38, np.float32), 1.0)[0] == 253
