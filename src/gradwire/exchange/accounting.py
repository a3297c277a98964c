"""What an exchange cost: bytes and seconds, counted where they are spent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Accounting:
    """Bytes that this rank sent and seconds that it spent; accountings add up.

    ``raw_nbytes`` counts the float32 bytes that were sent and ``wire_nbytes`` the bytes of the frames that
    carried them, headers included. ``encode_s`` and ``decode_s`` include the checksums, ``decode_s`` the
    division of an average; ``wait_s`` is spent waiting for peers; the rest of ``total_s`` is handing frames
    over. ``nonfinite`` counts the buckets that hold a NaN or an infinity after their exchange.
    """

    raw_nbytes: int = 0
    wire_nbytes: int = 0
    frames: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    wait_s: float = 0.0
    total_s: float = 0.0
    nonfinite: int = 0

    def __add__(self, other: Accounting) -> Accounting:
        return Accounting(
            self.raw_nbytes + other.raw_nbytes,
            self.wire_nbytes + other.wire_nbytes,
            self.frames + other.frames,
            self.encode_s + other.encode_s,
            self.decode_s + other.decode_s,
            self.wait_s + other.wait_s,
            self.total_s + other.total_s,
            self.nonfinite + other.nonfinite,
        )

    @property
    def ratio(self) -> float:
        """How many times fewer bytes travelled than floats were sent; 1 where nothing was."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0
