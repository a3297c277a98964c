"""What a rank sends first on a connection that it makes: the listening rank's token, and its own number.

Only the store that the ranks share can have told it the token.
"""

from __future__ import annotations

import secrets
import struct

from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES

_HELLO = struct.Struct(f"<{TOKEN_NBYTES}sI")
NBYTES = _HELLO.size


def hello(token: bytes, rank: int) -> bytes:
    """Return what ``rank`` sends to the owner of the token, who answers with the same of itself, in TLS."""
    return _HELLO.pack(token, rank)


def rank_of(received: bytes, token: bytes, wanted: range) -> int | None:
    """Return which of the ranks ``wanted`` sends this to the owner of ``token``, None if none does."""
    if len(received) < NBYTES:
        return None
    its_token, rank = _HELLO.unpack(received)
    return rank if secrets.compare_digest(its_token, token) and rank in wanted else None
