"""Lossless coding: bytes to fewer bytes by how often each value occurs, and what changed in weights."""

from gradwire.entropy.coder import decode, encode, max_nbytes
from gradwire.entropy.delta import DeltaDecoder, DeltaEncoder

__all__ = ["DeltaDecoder", "DeltaEncoder", "decode", "encode", "max_nbytes"]
