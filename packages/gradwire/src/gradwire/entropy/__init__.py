"""Lossless coding: an entropy coder for bytes, and weight deltas."""

from gradwire.entropy.coder import decode, encode, max_nbytes
from gradwire.entropy.delta import DeltaDecoder, DeltaEncoder

__all__ = ["DeltaDecoder", "DeltaEncoder", "decode", "encode", "max_nbytes"]
