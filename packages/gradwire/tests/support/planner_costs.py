"""Made-up costs of codecs, for planners that must not measure."""

from __future__ import annotations

from gradwire.codecs import Codec
from gradwire.timing.environment import CodecCost, CodecPoint

NBYTES = {"identity": 4.0, "bf16": 2.0, "bfp:7x16": 1.0625, "quantize:8": 1.004}
"""Codec -> bytes for each value."""


def codec_cost(spec: str, nbytes: float) -> CodecCost:
    """Return the costs of a codec that takes a nanosecond for a value each way; only identity is exact."""
    exact = spec == "identity"
    point = CodecPoint(1, nbytes, 1e-9, 1e-9, 1e-9, largest_error=0.0 if exact else 1e-5)
    return CodecCost(spec, (point,), 2e-5, exact)


def made_up(codec: Codec) -> CodecCost:
    """Return the costs of any codec."""
    return codec_cost(str(codec), NBYTES.get(str(codec), 3.0))
