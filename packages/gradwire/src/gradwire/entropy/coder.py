"""An entropy coder for bytes: interleaved rANS with a table for each block of 2^18 symbols.

Payload (numbers are little-endian): one byte with the version of the format, 1; seven bytes with the number
of symbols; four bytes for the size of each block; the blocks. ``docs/weight_delta.md`` describes a block byte
by byte. Every instruction set and every number of threads gives the same bytes. A block that coding wouldn't
shrink contains its symbols unencoded, so a payload is at most ``8 + 5 * blocks`` bytes larger than the
symbols.

Sources: J. Duda, "Asymmetric numeral systems" (arXiv 1311.2540, 2013); F. Giesen, "Interleaved entropy
coders" (arXiv 1402.3392, 2014).
"""

from __future__ import annotations

from gradwire import _native
from gradwire._native.tensors import check_tensor
from gradwire.deferred import torch
from gradwire.errors import PayloadError, TensorError


def room_for(nbytes: int, out: torch.Tensor | None) -> torch.Tensor:
    """Return ``out``, or ``nbytes`` of new memory. Raises ``TensorError`` if ``out`` is too small."""
    if out is None:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    check_tensor(out, "out", torch.uint8)
    if out.numel() < nbytes:
        raise TensorError(
            f"expected at least {nbytes} bytes in out, got {out.numel()}; allocate max_nbytes bytes"
        )
    return out


def max_nbytes(n: int) -> int:
    """Return the size of the largest payload of ``n`` symbols, in bytes."""
    return _native.entropy_max_nbytes(n)


def encode(symbols: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the payload of a 1-D uint8 tensor, in new memory or at the start of ``out`` (``max_nbytes``).

    Examples
    --------
    >>> import torch
    >>> encode(torch.full((100_000,), 7, dtype=torch.uint8)).tolist()  # a constant block
    [1, 160, 134, 1, 0, 0, 0, 0, 2, 0, 0, 0, 1, 7]
    """
    check_tensor(symbols, "symbols", torch.uint8)
    room = room_for(max_nbytes(symbols.numel()), out)
    return room[: _native.entropy_encode(symbols, room)]


def decode(payload: torch.Tensor, out: torch.Tensor) -> None:
    """Decode into ``out``, a 1-D uint8 tensor with one element per symbol.

    Raises ``PayloadError`` for a malformed payload or a different number of symbols; ``out`` is then
    undefined.
    """
    check_tensor(payload, "payload", torch.uint8)
    check_tensor(out, "out", torch.uint8)
    reason = _native.entropy_decode(payload, out)
    if reason is not None:
        raise PayloadError(
            f"expected an entropy coding of {out.numel()} symbols, got an invalid payload of "
            f"{payload.numel()} bytes: {reason}; send the payload again"
        )
