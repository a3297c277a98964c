"""Triton kernels of the compiled formats for GPUs, with the same bytes as the host's kernels (docs/gpu.md).

``table`` lists the formats with their modules, and states the contract of their kernels.
"""

from __future__ import annotations

from gradwire.gpu.chunks import Decoding, Encoded, decode, decode_add, encode
from gradwire.gpu.table import PLACES

__all__ = ["PLACES", "Decoding", "Encoded", "decode", "decode_add", "encode"]
