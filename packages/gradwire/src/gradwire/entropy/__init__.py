"""Lossless coding: an entropy coder of bytes, and deltas of weights."""

from gradwire.entropy.coder import decode, encode, max_nbytes
from gradwire.entropy.delta import DeltaDecoder, DeltaEncoder

__all__ = ["DeltaDecoder", "DeltaEncoder", "decode", "encode", "max_nbytes"]
