"""What a rank says first to one that it calls: that one's word, and who it is.

Only the store that they share can have told it the word.
"""

from __future__ import annotations

import secrets
import struct

from gradwire.links.rendezvous.endpoints import WORD_NBYTES

_HELLO = struct.Struct(f"<{WORD_NBYTES}sI")
NBYTES = _HELLO.size


def hello(word: bytes, rank: int) -> bytes:
    """Return what ``rank`` says to the one whose word this is; that one says the same of itself, in TLS."""
    return _HELLO.pack(word, rank)


def caller(said: bytes, word: bytes, wanted: range) -> int | None:
    """Return which of the ranks ``wanted`` says this to the one with this ``word``, None for a stranger."""
    if len(said) < NBYTES:
        return None
    its_word, rank = _HELLO.unpack(said)
    return rank if secrets.compare_digest(its_word, word) and rank in wanted else None
