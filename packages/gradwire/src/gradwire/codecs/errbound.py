"""Quantisation with a guaranteed error bound, and codes of four sizes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from gradwire.codecs.base import floor_log2, largest_rms
from gradwire.codecs.native import NativeCodec, as_int32
from gradwire.codecs.spec import (
    Reader,
    error,
    is_power,
    is_real,
    is_whole,
    join,
    nearest_power,
    write_power,
    write_real,
)
from gradwire.deferred import torch
from gradwire.errors import SpecError

_LOW, _HIGH = -126, 126
_EXPECTED = f"a power of two from 2^{_LOW} to 2^{_HIGH}"
_RELATIVE_EXPECTED = "a relative bound from 2^-24 to 1"
_BLOCK_EXPECTED = "a block that is a power of two from 64 to 65536"
_BLOCK_EXAMPLE = "errbound:rel=0.25,block=1024"


@dataclass(frozen=True)
class ErrBound(NativeCodec):
    """Rounding to multiples of twice the error bound, in as few bytes as possible.

    Formula: q = round_half_even(x / (2 bound)), y = 2 bound q. The bound is a power of two, so division and
    multiplication are exact. q = 0 takes no data, |q| <= 127 one byte, |q| <= 32767 two; any other value,
    including NaN and infinity, is sent as its four bytes.

    Payload: with ``relative``, one byte E for the chunk's bound 2^(E - 127); with ``block``, one such
    byte for each of the ceil(n / block) blocks. Then ceil(n / 4) tag bytes, value i of a quartet in bits
    2i+1..2i, tags 0..3 for 0, 1, 2, 4 bytes, unused tags 0; then the data of all values, little-endian.

    Bound: ``absolute`` itself. With ``relative`` = f, the bound of a chunk (with ``block``, of each block) is
    f times the root mean square of its finite elements, rounded down to a power of two within 2^-126..2^126;
    ``bound`` returns the largest. Non-finite values: exact, each independently. Ratio: up to 16, at 2 bits
    per value; 16/17 at worst; the blocks' bytes add little. Source: gradwire's own; the classes are from
    INCEPTIONN (MICRO 2018, algorithm 2), and the two streams from Stream VByte (Lemire, Kurz and Rupp, 2018,
    section 3).

    Parameters
    ----------
    absolute
        The bound, a power of two from 2^-126 to 2^126.
    relative
        The bound relative to each chunk's root mean square, from 2^-24 to 1, instead of ``absolute``.
    block
        The number of values that share a relative bound, a power of two from 64 to 65536; by default, the
        whole chunk. With blocks, a layer's small gradients keep their precision next to large gradients.

    Examples
    --------
    >>> import torch
    >>> codec = ErrBound(2**-10)
    >>> codec.encode(torch.tensor([0.0, 0.01, -1.0])).tolist()
    [36, 5, 0, 254]
    >>> str(ErrBound(relative=0.05))
    'errbound:rel=0.05'
    >>> x = torch.cat([torch.full((64,), 2.0**-20), torch.full((64,), 1024.0)])
    >>> ErrBound(relative=0.25, block=64).encode(x)[:4].tolist()  # 2^-22, 2^8; tags 1 1 1 1
    [105, 135, 85, 85]
    """

    absolute: float | None = None
    relative: float | None = None
    block: int | None = None

    name = "errbound"
    wire_id = 4
    EXAMPLES = (
        "errbound:2^-10",
        "errbound:2^-126",
        "errbound:2^0",
        "errbound:2^126",
        "errbound:rel=0.05",
        "errbound:rel=1",
        _BLOCK_EXAMPLE,
        "errbound:rel=0.05,block=64",
        "errbound:rel=1,block=65536",
    )
    _format = "errbound"

    def __post_init__(self) -> None:
        if (self.absolute is None) == (self.relative is None):
            raise SpecError(
                f"{self.name}: expected an absolute or a relative bound, got "
                f"{'neither' if self.absolute is None else 'both'}; "
                f"for example, write '{self.name}:2^-10' or '{self.name}:rel=0.05'"
            )
        if self.absolute is not None and not is_power(self.absolute, _LOW, _HIGH):
            nearest = f"{self.name}:{nearest_power(self.absolute, _LOW, _HIGH)}"
            raise error(self.name, _EXPECTED, self.absolute, nearest)
        if self.relative is not None and not is_real(self.relative, 2**-24, 1.0):
            raise error(self.name, _RELATIVE_EXPECTED, self.relative, f"{self.name}:rel=0.05")
        if self.block is None:
            return
        if not is_whole(self.block, 64, 65536) or self.block.bit_count() != 1:
            raise error(self.name, _BLOCK_EXPECTED, self.block, _BLOCK_EXAMPLE)
        if self.relative is None:
            raise error(self.name, "rel= with block=", str(self), _BLOCK_EXAMPLE)

    @property
    def _params(self) -> tuple[int, ...]:
        if self.absolute is not None:
            return (127 + floor_log2(self.absolute),)
        return 0, as_int32(int.from_bytes(struct.pack("<f", self.relative), "little")), self.block or 0

    @property
    def is_scalable(self) -> bool:
        """Whether the bound is absolute and from 2^-24 to 2^-1, the precision and range of scaled values."""
        return self.absolute is not None and 2**-24 <= self.absolute <= 2**-1

    def __str__(self) -> str:
        block = "" if self.block is None else f"block={self.block}"
        if self.absolute is not None:
            return join(self.name, write_power(self.absolute), block)
        return join(self.name, f"rel={write_real(self.relative or 0.0)}", block)

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[float | None, float | None, int | None]:
        relative, block = reader.option("rel"), reader.option("block")
        if block is not None:
            reader.example = _BLOCK_EXAMPLE
        expected = f"{_EXPECTED}, or rel= with a share of each chunk's root mean square,"
        absolute = reader.argument(expected) if relative is None or reader.has_argument else None
        return (
            None if absolute is None else reader.real(_EXPECTED, absolute),
            None if relative is None else reader.real(_RELATIVE_EXPECTED, relative),
            None if block is None else reader.whole(_BLOCK_EXPECTED, block),
        )

    def bound(self, x: torch.Tensor) -> float:
        """Return the absolute bound or, with ``relative``, the chunk's largest bound, or 0.0 for zeros."""
        if self.absolute is not None:
            return self.absolute
        rms = largest_rms(x, self.block or x.numel())
        if rms == 0.0:
            return 0.0
        share: float = struct.unpack("<f", struct.pack("<f", self.relative))[0]
        # The kernels sum in a different order. Their sum may reach a power of two that this sum just misses.
        target = share * rms * (1.0 + 2.0**-40)
        return math.ldexp(1.0, min(max(floor_log2(target), _LOW), _HIGH))
