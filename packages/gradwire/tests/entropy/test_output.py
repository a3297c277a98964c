"""Encoders write to the caller's memory, or to their own."""

from __future__ import annotations

import pytest
import torch

from gradwire import entropy
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.errors import TensorError

SYMBOLS = torch.full((100_000,), 7, dtype=torch.uint8)
CODED = [1, 160, 134, 1, 0, 0, 0, 0, 2, 0, 0, 0, 1, 7]
"""One constant block, as docs/weight_delta.md describes it."""
MOST = 8 + 5 + SYMBOLS.numel()


def test_front_of_new_memory_is_what_was_written() -> None:
    assert entropy.encode(SYMBOLS).tolist() == CODED


def test_front_of_the_callers_memory_shares_it() -> None:
    out = torch.zeros(MOST + 2, dtype=torch.uint8)
    front = entropy.encode(SYMBOLS, out)
    assert front.data_ptr() == out.data_ptr()
    assert front.tolist() == CODED


def test_too_little_memory_is_refused_before_anything_is_written() -> None:
    out = torch.zeros(9, dtype=torch.uint8)
    wanted = f"expected at least {entropy.max_nbytes(SYMBOLS.numel())} bytes in out, got 9; allocate max_n"
    with pytest.raises(TensorError, match=wanted):
        entropy.encode(SYMBOLS, out)
    assert out.sum() == 0
    with pytest.raises(TensorError, match=r"expected a 1-D contiguous torch\.uint8 tensor .* for out"):
        entropy.encode(SYMBOLS, torch.zeros(10))


def test_memory_is_on_the_cpu_whatever_the_default_device_is() -> None:
    masters, weights = torch.randn(100), torch.empty(100)
    with torch.device("meta"):
        assert entropy.encode(SYMBOLS).tolist() == CODED
        payload = DeltaEncoder(masters, "fp32").encode(masters, 1)
    DeltaDecoder("fp32").apply(payload, weights)
    assert torch.equal(weights, masters)


def test_an_encoder_from_inference_mode_encodes_outside_of_it() -> None:
    masters, weights = torch.randn(100), torch.empty(100, dtype=torch.bfloat16)
    with torch.inference_mode():
        encoder = DeltaEncoder(masters)
    for version in (1, 2):
        DeltaDecoder().apply(encoder.encode(masters, version, full=True), weights)
        assert torch.equal(weights, masters.bfloat16())
