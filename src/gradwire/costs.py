"""What an exchange costs in seconds and bytes: one record for measurements and predictions."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import sub


@dataclass(slots=True)
class ExchangeCost:
    """Seconds and bytes of one exchange on one rank, or of several exchanges; costs add up.

    On the rank's thread ``encode_s``, ``decode_s``, ``handling_s`` and ``wait_s`` follow one another, so
    ``total_s`` is their sum.

    Attributes
    ----------
    encode_s, decode_s
        Seconds of encoding and decoding, checksums included. ``decode_s`` includes the division of an
        average.
    handling_s
        Seconds of handing frames over to the link and taking them from it.
    wait_s
        Seconds of waiting: for peers, for the line and, in a prediction, for cores.
    raw_nbytes
        Bytes of float32 that this rank sent.
    wire_nbytes
        Bytes of the frames that carried them, headers included.
    frames
        Frames that this rank sent.
    nonfinite
        Buckets that held a NaN or an infinity after their exchange.
    device_nbytes
        Bytes that crossed the bus between the host and the device that the buckets are on, both ways.
    cores_s
        In a prediction, seconds for which the exchange keeps every core of a shared machine busy; 0 where
        each rank has a machine of its own.
    """

    encode_s: float = 0.0
    decode_s: float = 0.0
    handling_s: float = 0.0
    wait_s: float = 0.0
    raw_nbytes: float = 0
    wire_nbytes: float = 0
    frames: int = 0
    nonfinite: int = 0
    cores_s: float = 0.0
    device_nbytes: float = 0

    @property
    def codec_s(self) -> float:
        """Seconds of encoding and decoding."""
        return self.encode_s + self.decode_s

    @property
    def work_s(self) -> float:
        """Seconds in which the thread works."""
        return self.encode_s + self.decode_s + self.handling_s

    @property
    def total_s(self) -> float:
        """Seconds from the beginning to the end."""
        return self.work_s + self.wait_s

    @property
    def ratio(self) -> float:
        """How many times fewer bytes travelled than the floats have; 1 where nothing was sent."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def took(self, total_s: float) -> None:
        """Count as handling what is left of ``total_s``."""
        self.handling_s = max(0.0, total_s - self.codec_s - self.wait_s)

    def __add__(self, other: ExchangeCost) -> ExchangeCost:
        # Field by field: this runs for every bucket of every step.
        return ExchangeCost(
            self.encode_s + other.encode_s,
            self.decode_s + other.decode_s,
            self.handling_s + other.handling_s,
            self.wait_s + other.wait_s,
            self.raw_nbytes + other.raw_nbytes,
            self.wire_nbytes + other.wire_nbytes,
            self.frames + other.frames,
            self.nonfinite + other.nonfinite,
            self.cores_s + other.cores_s,
            self.device_nbytes + other.device_nbytes,
        )

    def __sub__(self, earlier: ExchangeCost) -> ExchangeCost:
        return ExchangeCost(*map(sub, astuple(self), astuple(earlier)))

    def towards(self, other: ExchangeCost, share: float) -> ExchangeCost:
        """Return what is ``share`` of the way to ``other``: 0 is here, 1 is there, 2 as far again."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return ExchangeCost(*(max(0, mine + share * (theirs - mine)) for mine, theirs in pairs))
