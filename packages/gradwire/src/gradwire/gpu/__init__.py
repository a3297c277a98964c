"""The compiled formats on GPUs, in Triton: the same bytes as the host's kernels (docs/gpu.md).

``contract`` says what a format's kernels promise, ``formats`` has them, and ``table`` says which there are.
"""

from __future__ import annotations

from gradwire.gpu.chunks import Decoding, Encoded, decode, decode_add, encode
from gradwire.gpu.table import PLACES

__all__ = ["PLACES", "Decoding", "Encoded", "decode", "decode_add", "encode"]
