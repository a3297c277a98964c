"""Truncation of every float to its most significant bits (``truncate``) or bytes (``bitpack``)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from gradwire.codecs.base import truncation_bound
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader, error, is_whole
from gradwire.deferred import torch

_BITS_EXPECTED = "1 to 31 low bits to drop"


class TopBits(NativeCodec):
    """A codec that keeps the top bits of every float. The only parameter is their number."""

    _format = "pack"

    @property
    @abstractmethod
    def _params(self) -> tuple[int]: ...

    @property
    def is_offloadable(self) -> bool:
        """Whether a NIC may apply the codec: values keep their exponent, so a chunk needs no marker."""
        return self._params[0] > 8

    def bound(self, x: torch.Tensor) -> float:
        """Return the largest value of the dropped bits in the largest element."""
        return truncation_bound(x, 32 - self._params[0])


@dataclass(frozen=True)
class Truncate(TopBits):
    """The top 32 - b bits of every float. The b dropped bits decode to 0.

    Formula: y = x with its b low bits cleared, which rounds towards zero. Payload: values of k = 32 - b bits
    packed little-endian into ceil(n k / 8) bytes, unused bits 0; for k <= 8, which truncates the exponent,
    one more byte: 1 if the chunk held a non-finite value, else 0.

    Bound: 2^(b - 23) of the largest element's binade, at most that element. Non-finite values: each
    independently; infinities are exact, and a NaN whose kept mantissa bits are 0 becomes an infinity. For k
    <= 8, one non-finite value turns the whole chunk (in an exchange, the segment) into NaN. Ratio: 32/k.
    Source: Li et al., INCEPTIONN (MICRO 2018), section VIII, "xb-T"; with b = 16 the "T" of Pipe-SGD (NeurIPS
    2018, section 3.2).

    Parameters
    ----------
    dropped_bits
        b, 1 to 31.

    Examples
    --------
    >>> import torch
    >>> Truncate(16).encode(torch.tensor([1.0, -2.0])).tolist()
    [128, 63, 0, 192]
    >>> Truncate(24).encode(torch.tensor([1.0, -2.0])).tolist()
    [63, 192, 0]
    """

    dropped_bits: int

    name = "truncate"
    wire_id = 5
    EXAMPLES = tuple(f"truncate:{bits}" for bits in (16, 1, 8, 22, 23, 24, 27, 31))

    def __post_init__(self) -> None:
        if not is_whole(self.dropped_bits, 1, 31):
            raise error(self.name, _BITS_EXPECTED, self.dropped_bits, self.EXAMPLES[0])

    @property
    def _params(self) -> tuple[int]:
        return (32 - self.dropped_bits,)

    def __str__(self) -> str:
        return f"{self.name}:{self.dropped_bits}"

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int]:
        return (reader.whole(_BITS_EXPECTED, reader.argument(_BITS_EXPECTED)),)


# Truncation to whole bytes.

_BYTES_EXPECTED = "1 to 4 bytes to keep"


@dataclass(frozen=True)
class BitPack(TopBits):
    """The r most significant bytes of every float. The other bytes decode to 0.

    Formula: y = x with its 4 - r low bytes cleared, which rounds towards zero. Payload: r bytes per value,
    least significant first; for r = 1 one more byte: 1 if the chunk held a non-finite value, else 0. The
    bytes equal those of ``truncate`` with 32 - 8r dropped bits, and for r = 4 those of ``identity``.

    Bound: 2^(9 - 8r) of the largest element's binade (r = 4: 0), at most that element. Non-finite
    values: as in ``truncate``; for r = 1, the whole chunk becomes NaN. Ratio: 4/r. Source: Zhuang,
    Malossi and Casas, A2DTWP ("Reducing Data Motion to Accelerate the Training of Deep Neural Networks"),
    section III, Bitpack and Bitunpack.

    Parameters
    ----------
    kept_bytes
        r, 1 to 4; RoundTo in the paper.

    Examples
    --------
    >>> import torch
    >>> BitPack(2).encode(torch.tensor([1.0, -2.0])).tolist()
    [128, 63, 0, 192]
    """

    kept_bytes: int

    name = "bitpack"
    wire_id = 8
    EXAMPLES = ("bitpack:2", "bitpack:1", "bitpack:3", "bitpack:4")

    def __post_init__(self) -> None:
        if not is_whole(self.kept_bytes, 1, 4):
            raise error(self.name, _BYTES_EXPECTED, self.kept_bytes, self.EXAMPLES[0])

    @property
    def _params(self) -> tuple[int]:
        return (8 * self.kept_bytes,)

    def __str__(self) -> str:
        return f"{self.name}:{self.kept_bytes}"

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int]:
        return (reader.whole(_BYTES_EXPECTED, reader.argument(_BYTES_EXPECTED)),)
