"""Top-k sparsification: only the largest magnitudes are sent."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from gradwire.codecs.base import Codec, largest_finite, malformed
from gradwire.codecs.native import kernels_beside
from gradwire.codecs.spec import Reader, error, is_real, write_real
from gradwire.deferred import np, torch

_EXPECTED = "a fraction above 0 and at most 1"
_INFINITY_BITS = 0x7F80_0000
_QUIET_NAN_BITS = 0x7FC0_0000
_NAN_INDEX = 0xFFFF_FFFF

Words: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint32]]"


@dataclass(frozen=True)
class TopK(Codec):
    """The k = ceil(f n) largest magnitudes, exactly. All other values become 0.

    Formula: y = x where |x| is among the k largest magnitudes, else 0. Among equal magnitudes, the lowest
    index wins; non-finite values rank above all others.

    Payload: k indices (uint32, ascending), then their k float32 values, little-endian; nothing for n = 0.
    More than k non-finite values turn the chunk into NaN: every index is 0xFFFFFFFF and every value the quiet
    NaN 0x7FC00000.

    Bound: the largest dropped magnitude. Non-finite values: exact, and preferred to finite values; more than
    k turn the whole chunk into NaN. Ratio: 1 / (2 f). Source: Aji and Heafield, "Sparse Communication for
    Distributed Gradient Descent" (EMNLP 2017), section 3. Training needs error feedback for the dropped
    values.

    Parameters
    ----------
    fraction
        f, above 0 and at most 1; an exact decimal, so 0.01 of 700 values is 7.

    Examples
    --------
    >>> import torch
    >>> codec = TopK(0.5)
    >>> codec.encode(torch.tensor([1.0, -2.0])).tolist()
    [1, 0, 0, 0, 0, 0, 0, 192]
    """

    fraction: float

    name = "topk"
    wire_id = 10
    EXAMPLES = ("topk:0.01", "topk:0.3", "topk:1")
    WANTS_RESIDUAL = True
    ON_CUDA = True

    def __post_init__(self) -> None:
        if not is_real(self.fraction, 0.0, 1.0) or self.fraction == 0:
            raise error(self.name, _EXPECTED, self.fraction, self.EXAMPLES[0])

    def __str__(self) -> str:
        return f"{self.name}:{write_real(self.fraction)}"

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[float]:
        return (reader.real(_EXPECTED, reader.argument(_EXPECTED)),)

    def kept(self, n: int) -> int:
        """Return k, the number of values sent for a chunk of ``n``."""
        numerator, denominator = self.compiled[1]
        return -(-numerator * n // denominator)

    @property
    def compiled(self) -> tuple[str, tuple[int, ...]]:
        """The format's name, and f as a fraction, for the GPU kernels (``gradwire.gpu``)."""
        return self.name, Fraction(repr(float(self.fraction))).as_integer_ratio()

    def max_nbytes(self, n: int) -> int:
        """Return the payload size: 8 bytes per kept value."""
        return 8 * self.kept(n)

    def bound(self, x: torch.Tensor) -> float:
        """Return the largest finite magnitude that is not sent."""
        x = x.detach()
        dropped = torch.ones(x.numel(), dtype=torch.bool, device="cpu")
        dropped[torch.from_numpy(_largest(_magnitudes(x), self.kept(x.numel())))] = False
        return largest_finite(x[dropped])

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        kernels, (name, params) = kernels_beside(x), self.compiled
        if kernels is not None:
            return kernels.encode(name, x, out, params)
        k = self.kept(x.numel())
        magnitudes = _magnitudes(x)
        if np.count_nonzero(magnitudes == _INFINITY_BITS) > k:
            indices = np.full(k, _NAN_INDEX, dtype=np.uint32)
            values = np.full(k, _QUIET_NAN_BITS, dtype=np.uint32)
        else:
            chosen = _largest(magnitudes, k)
            indices = chosen.astype(np.uint32)
            values = x.numpy().view(np.uint32)[chosen]
        out.numpy()[: 8 * k] = np.concatenate([indices, values]).view(np.uint8)
        return 8 * k

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        kernels, (name, params) = kernels_beside(out), self.compiled
        if kernels is not None:
            return kernels.decode(name, payload, out, params)
        n = out.numel()
        k = self.kept(n)
        if payload.numel() != 8 * k:
            raise malformed(self, payload, n, "its length does not match")
        # Copy, because the payload may be unaligned.
        words = payload.numpy().copy().view(np.uint32)
        indices, values = words[:k].astype(np.int64), words[k:]
        if k and (indices == _NAN_INDEX).all():
            if not (values == _QUIET_NAN_BITS).all():
                raise malformed(self, payload, n, "a chunk marked as NaN must contain only quiet NaNs")
            out.numpy().fill(np.nan)
            return None
        if k and (indices[-1] >= n or not (indices[1:] > indices[:-1]).all()):
            raise malformed(self, payload, n, "its indices must increase strictly and be below the length")
        decoded = out.numpy().view(np.uint32)
        decoded.fill(0)
        decoded[indices] = values
        return None

    def _decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        kernels, (name, params) = kernels_beside(acc), self.compiled
        if kernels is None:
            super()._decode_add(payload, acc)
        else:
            kernels.decode_add(name, payload, acc, params)


def _magnitudes(x: torch.Tensor) -> Words:
    """Return the bits of magnitudes, which sort like magnitudes. Non-finite values all have the same bits."""
    words: Words = x.numpy().view(np.uint32) & np.uint32(0x7FFF_FFFF)
    np.minimum(words, np.uint32(_INFINITY_BITS), out=words)
    return words


def _largest(magnitudes: Words, k: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the ascending indices of the ``k`` largest magnitudes. Ties go to the lowest indices."""
    if k == 0:
        return np.empty(0, dtype=np.int64)
    n = magnitudes.size
    least = np.partition(magnitudes, n - k)[n - k]
    candidates = np.flatnonzero(magnitudes >= least)
    equal = np.flatnonzero(magnitudes[candidates] == least)
    too_many = candidates.size - k
    return np.delete(candidates, equal[equal.size - too_many :])
