"""The header of a delta: which version of the weights it starts from, and which one it makes of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gradwire.deferred import torch
from gradwire.errors import PayloadError

FORMAT_VERSION = 1
HEADER_NBYTES = 28
HASH_NBYTES = 8
LAST_VERSION = 2**64 - 1
_FULL, _HASHED, _PLAIN = 1, 2, 4
_MEANT = (0, _FULL, _HASHED, _FULL | _HASHED, _FULL | _PLAIN, _FULL | _PLAIN | _HASHED)
_LAYOUT = struct.Struct("<4B3Q")


@dataclass(frozen=True)
class Header:
    """What is in front of the body; ``base`` is None for a full copy, and ``check`` without a hash.

    The body of a ``plain`` full copy is the words themselves.
    """

    word_nbytes: int
    n: int
    version: int
    base: int | None
    check: int | None
    plain: bool = False

    def write(self) -> bytes:
        """Return the header's bytes."""
        flags = (_FULL if self.base is None else 0) | (_HASHED if self.check is not None else 0)
        flags |= _PLAIN if self.plain else 0
        fixed = _LAYOUT.pack(FORMAT_VERSION, self.word_nbytes, flags, 0, self.n, self.base or 0, self.version)
        return fixed if self.check is None else fixed + struct.pack("<Q", self.check)

    @property
    def nbytes(self) -> int:
        """How long the header is."""
        return HEADER_NBYTES + (0 if self.check is None else HASH_NBYTES)

    @classmethod
    def read(cls, payload: torch.Tensor) -> Header:
        """Return the header of a payload. Raises ``PayloadError``."""
        return cls.parse(payload[: HEADER_NBYTES + HASH_NBYTES].numpy().tobytes(), payload.numel())

    @classmethod
    def parse(cls, front: bytes, nbytes: int) -> Header:
        """Return the header of a payload of ``nbytes``, which begins with ``front``, or raise as ``read``."""
        if len(front) < HEADER_NBYTES:
            raise _malformed(nbytes, f"it ends within the {HEADER_NBYTES} bytes of its header")
        version, word_nbytes, flags, unused, n, base, made = _LAYOUT.unpack_from(front)
        if version != FORMAT_VERSION:
            raise _malformed(nbytes, f"its format has the version {version}, but {FORMAT_VERSION} is known")
        if flags not in _MEANT or unused or (flags & _FULL and base):
            raise _malformed(nbytes, "unused bits of its header are set")
        check = None
        if flags & _HASHED:
            if len(front) < HEADER_NBYTES + HASH_NBYTES:
                raise _malformed(nbytes, "it ends within its hash")
            (check,) = struct.unpack_from("<Q", front, HEADER_NBYTES)
        return cls(word_nbytes, n, made, None if flags & _FULL else base, check, bool(flags & _PLAIN))


def _malformed(nbytes: int, reason: str) -> PayloadError:
    return PayloadError(f"a payload of {nbytes} bytes is no delta of weights: {reason}; send a full copy")
