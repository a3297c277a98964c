"""An entropy coder for bytes: interleaved rANS with a table for each block of 2^18 symbols.

Payload (numbers are little-endian): one byte 1, the version of the format; seven bytes, the number of
symbols; four bytes for the size of each block; the blocks. ``docs/weight_delta.md`` describes a block byte by
byte. Every target and every number of threads gives the same bytes. A block that coding wouldn't make smaller
carries its symbols as they are, so a payload is at most ``8 + 5 * blocks`` bytes larger than the symbols.

Sources: J. Duda, "Asymmetric numeral systems" (arXiv 1311.2540, 2013); F. Giesen, "Interleaved entropy
coders" (arXiv 1402.3392, 2014).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from gradwire import _native
from gradwire._native.tensors import check_tensor
from gradwire.deferred import torch
from gradwire.errors import PayloadError, TensorError

# The memory that an encoder writes to: the caller's, or new memory.


def front_of(out: torch.Tensor | None, nbytes: int, write: Callable[[torch.Tensor], int]) -> torch.Tensor:
    """Return the front of ``out``, or of ``nbytes`` of new memory, that ``write`` has used."""
    if out is None:
        out = torch.empty(nbytes, dtype=torch.uint8)
    check_tensor(out, "out", torch.uint8)
    if out.numel() < nbytes:
        raise TensorError(f"expected out of at least {nbytes} bytes, got {out.numel()}; allocate max_nbytes")
    return out[: write(out)]


def max_nbytes(n: int) -> int:
    """Return the largest payload of ``n`` symbols."""
    return _native.entropy_max_nbytes(n)


def encode(symbols: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the payload of a 1-D uint8 tensor, in new memory or in front of ``out`` of ``max_nbytes``.

    Examples
    --------
    >>> import torch
    >>> encode(torch.full((100_000,), 7, dtype=torch.uint8)).tolist()  # a constant block
    [1, 160, 134, 1, 0, 0, 0, 0, 2, 0, 0, 0, 1, 7]
    """
    check_tensor(symbols, "symbols", torch.uint8)
    return front_of(out, max_nbytes(symbols.numel()), lambda room: _native.entropy_encode(symbols, room))


def decode(payload: torch.Tensor, out: torch.Tensor) -> None:
    """Decode into ``out``, a 1-D uint8 tensor with as many elements as there were symbols.

    Raises ``PayloadError`` for a malformed payload or one of another length; ``out`` is then undefined.
    """
    check_tensor(payload, "payload", torch.uint8)
    check_tensor(out, "out", torch.uint8)
    reason = _native.entropy_decode(payload, out)
    if reason is not None:
        raise PayloadError(
            f"a payload of {payload.numel()} bytes is no entropy coding of {out.numel()} symbols: {reason}; "
            "send it again"
        )


# The header of a delta: the version of the weights that it starts from, and the one that it makes.

FORMAT_VERSION = 1
HEADER_NBYTES = 28
HASH_NBYTES = 8
LAST_VERSION = 2**64 - 1
_FULL, _HASHED, _PLAIN = 1, 2, 4
_VALID_FLAGS = (0, _FULL, _HASHED, _FULL | _HASHED, _FULL | _PLAIN, _FULL | _PLAIN | _HASHED)
_LAYOUT = struct.Struct("<4B3Q")


@dataclass(frozen=True)
class DeltaHeader:
    """The header before the body of a delta.

    ``base`` is None for a full copy, and ``check`` is None without a hash. The body of a ``plain`` full copy
    is the words themselves.
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
        """The size of the header."""
        return HEADER_NBYTES + (0 if self.check is None else HASH_NBYTES)

    @classmethod
    def read(cls, payload: torch.Tensor) -> DeltaHeader:
        """Return the header of a payload. Raises ``PayloadError``."""
        return cls.parse(payload[: HEADER_NBYTES + HASH_NBYTES].numpy().tobytes(), payload.numel())

    @classmethod
    def parse(cls, front: bytes, nbytes: int) -> DeltaHeader:
        """Return the header of a payload of ``nbytes``, which begins with ``front``, or raise as ``read``."""
        if len(front) < HEADER_NBYTES:
            raise _malformed(nbytes, f"it ends within the {HEADER_NBYTES} bytes of its header")
        version, word_nbytes, flags, unused, n, base, made = _LAYOUT.unpack_from(front)
        if version != FORMAT_VERSION:
            raise _malformed(nbytes, f"expected the format version {FORMAT_VERSION}, got {version}")
        if flags not in _VALID_FLAGS or unused or (flags & _FULL and base):
            raise _malformed(nbytes, "unused bits of its header are set")
        check = None
        if flags & _HASHED:
            if len(front) < HEADER_NBYTES + HASH_NBYTES:
                raise _malformed(nbytes, "it ends within its hash")
            (check,) = struct.unpack_from("<Q", front, HEADER_NBYTES)
        return cls(word_nbytes, n, made, None if flags & _FULL else base, check, bool(flags & _PLAIN))


def _malformed(nbytes: int, reason: str) -> PayloadError:
    return PayloadError(f"a payload of {nbytes} bytes is no delta of weights: {reason}; send a full copy")
