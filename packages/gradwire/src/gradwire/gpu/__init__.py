"""The compiled formats on GPUs, in Triton: the same bytes as the host's kernels (docs/gpu.md).

``table`` lists the formats, with the contract of their kernels; each format has a module of its name.
"""

from __future__ import annotations

from gradwire.gpu.chunks import Decoding, Encoded, decode, decode_add, encode
from gradwire.gpu.table import PLACES

__all__ = ["PLACES", "Decoding", "Encoded", "decode", "decode_add", "encode"]
