"""Lossless compression: bytes sorted by significance, then a general-purpose compressor."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.base import Codec, malformed
from gradwire.codecs.spec import Reader, error, is_whole, join
from gradwire.deferred import np, torch, zstandard

_EXPECTED, _EXAMPLE = "a level from 1 to 22", "lossless:level=3"


@dataclass(frozen=True)
class Lossless(Codec):
    """Zstandard over the four byte planes of the floats.

    Formula: y = x. Payload: one Zstandard frame of 4n bytes, first the lowest byte of every float, last the
    highest (sign and exponent, which contain the redundancy); nothing for n = 0. Versions of the Zstandard
    library may encode the same chunk differently, but all payloads decode to the same values.

    Bound: 0. Non-finite values: carried exactly, with all bits. Ratio: 1.1 to 1.2 on gradients, more if
    many are 0. Source: RFC 8878 (Zstandard); the byte shuffle is from Blosc and HDF5.

    Parameters
    ----------
    level
        Zstandard's level, 1 (fast) to 22 (small).

    Examples
    --------
    >>> import torch
    >>> codec = Lossless()
    >>> x = torch.zeros(1000)
    >>> codec.encode(x).numel() < 40
    True
    """

    level: int = 1

    name = "lossless"
    wire_id = 11
    EXAMPLES = ("lossless", "lossless:level=5")
    EXACT = True

    def __post_init__(self) -> None:
        if not is_whole(self.level, 1, 22):
            raise error(self.name, _EXPECTED, self.level, _EXAMPLE)

    def __str__(self) -> str:
        return join(self.name, f"level={self.level}" if self.level != 1 else "")

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int]:
        reader.example = _EXAMPLE
        level = reader.option("level")
        return (1 if level is None else reader.whole(_EXPECTED, level),)

    def max_nbytes(self, n: int) -> int:
        """Return the size of Zstandard's largest frame, ``ZSTD_COMPRESSBOUND`` of 4n bytes."""
        raw = 4 * n
        margin = ((128 << 10) - raw) >> 11 if raw < 128 << 10 else 0
        return raw + (raw >> 8) + margin

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the contract's parameter
        """Return 0, because the codec is lossless."""
        return 0.0

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        if x.numel() == 0:
            return 0
        planes = np.ascontiguousarray(x.numpy().view(np.uint8).reshape(-1, 4).T)
        frame = zstandard.ZstdCompressor(level=self.level).compress(planes.data)
        out.numpy()[: len(frame)] = np.frombuffer(frame, dtype=np.uint8)
        return len(frame)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if out.numel() == 0 and payload.numel() == 0:
            return
        planes = np.frombuffer(self._decompress(payload, out.numel()), dtype=np.uint8).reshape(4, -1)
        out.numpy().view(np.uint8).reshape(-1, 4)[:] = planes.T

    def _decompress(self, payload: torch.Tensor, n: int) -> bytes:
        try:
            frame = payload.numpy().data
            # Check the size first, so that a damaged frame can't cause a huge allocation.
            if n == 0 or zstandard.frame_content_size(frame) != 4 * n:
                raise zstandard.ZstdError(f"its content is not {4 * n} bytes long")
            return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as reason:
            raise malformed(self, payload, n, str(reason)) from reason
