"""What a rank sends first on a connection that it makes: the listening rank's token, and its own number.

Only the store that the ranks share can have told it the token. A connection that carries nothing but float32
begins with float32, too: a power of two from 1 to 2^15 for every four bits, which no NIC on the way changes.
"""

from __future__ import annotations

import secrets
import struct

from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES

_HELLO = struct.Struct(f"<{TOKEN_NBYTES}sI")
_FLOATS = struct.Struct(f"<{2 * _HELLO.size}f")


def nbytes(tos: int = 0) -> int:
    """Return the length of a hello on connections with this type of service."""
    return (_FLOATS if tos else _HELLO).size


def hello(token: bytes, rank: int, tos: int = 0) -> bytes:
    """Return what ``rank`` sends to the owner of the token, who answers with the same of itself, in TLS.

    On a connection that is marked with a type of service, it is float32.
    """
    said = _HELLO.pack(token, rank)
    if not tos:
        return said
    return _FLOATS.pack(*(2.0 ** (byte >> shift & 15) for byte in said for shift in (4, 0)))


def rank_of(received: bytes, token: bytes, wanted: range, tos: int = 0) -> int | None:
    """Return which of the ranks ``wanted`` sends this to the owner of ``token``, None if none does."""
    if len(received) < nbytes(tos):
        return None
    said = _said(received) if tos else received
    rank: int = _HELLO.unpack(said)[1]
    return rank if rank in wanted and secrets.compare_digest(received, hello(token, rank, tos)) else None


def _said(received: bytes) -> bytes:
    """Return the bytes whose float32 these are, if they are any."""
    exponents = [(word >> 23) - 127 & 15 for (word,) in struct.iter_unpack("<I", received)]
    return bytes(high << 4 | low for high, low in zip(exponents[::2], exponents[1::2], strict=True))
