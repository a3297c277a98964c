"""The cost of an exchange in seconds and bytes, measured or predicted."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import sub
from typing import Any


@dataclass(frozen=True, slots=True)
class Scales:
    """The exponents of the powers of two by which frames were scaled (``gradwire.codecs.wrappers``)."""

    smallest: int | None = None  # None if no frame was scaled
    largest: int | None = None
    unscaled: int = 0  # frames of zeros, of values that no scale fits, and frames that need no scale

    @classmethod
    def of(cls, exponent: int) -> Scales:
        """Return the ``Scales`` of one frame with this ``exponent``."""
        return cls(exponent, exponent) if exponent else cls(unscaled=1)

    def __bool__(self) -> bool:
        return self.smallest is not None or self.unscaled > 0

    def __add__(self, other: Scales) -> Scales:
        if not (self and other):
            return self or other
        ends = [self.smallest, other.smallest, self.largest, other.largest]
        known = [each for each in ends if each is not None]
        return Scales(min(known, default=None), max(known, default=None), self.unscaled + other.unscaled)


@dataclass(slots=True)
class ExchangeCost:
    """The seconds and bytes of one or several exchanges on one rank. Costs can be added.

    On the rank's thread, ``encode_s``, ``decode_s``, ``handling_s`` and ``wait_s`` don't overlap, so
    ``total_s`` is their sum.

    Attributes
    ----------
    encode_s, decode_s
        Seconds of encoding and decoding, checksums included. ``decode_s`` includes dividing a sum to get the
        average.
    handling_s, wait_s
        Seconds spent on passing frames to and from the link; and seconds of waiting for peers, for the link
        and, in a prediction, for cores.
    raw_nbytes, wire_nbytes, frames
        Bytes of float32 that this rank sent; bytes of its frames, headers included; and its frames.
    nonfinite
        Buckets that held a NaN or an infinity after their exchange.
    device_nbytes
        Bytes that crossed the bus between the host and the buckets' device, in both directions.
    cores_s
        In a prediction, seconds for which the exchange keeps every core of a shared machine busy; 0 if each
        rank has its own machine.
    scales
        The scales of the frames that this rank encoded, if the plan has a scale.
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
    scales: Scales = field(default=Scales(), kw_only=True)

    @property
    def codec_s(self) -> float:
        """The seconds of encoding and decoding."""
        return self.encode_s + self.decode_s

    @property
    def work_s(self) -> float:
        """The seconds of encoding, decoding, and handling frames."""
        return self.codec_s + self.handling_s

    @property
    def total_s(self) -> float:
        """The seconds from the beginning to the end of the exchange."""
        return self.work_s + self.wait_s

    @property
    def ratio(self) -> float:
        """The compression ratio on the wire, or 1 if nothing was sent."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def took(self, total_s: float) -> None:
        """Set ``handling_s`` to ``total_s`` minus the seconds of encoding, decoding, and waiting."""
        self.handling_s = max(0.0, total_s - self.codec_s - self.wait_s)

    def __add__(self, other: ExchangeCost) -> ExchangeCost:
        # Names every field, which is faster than a loop: this runs for every bucket of every step.
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
            scales=self.scales + other.scales,
        )

    def __sub__(self, earlier: ExchangeCost) -> ExchangeCost:
        return ExchangeCost(*map(sub, self._amounts(), earlier._amounts()), scales=self.scales)

    def slowed(self, factor: float) -> ExchangeCost:
        """Return this cost with all seconds except ``cores_s`` multiplied by ``factor``."""
        return replace(
            self,
            encode_s=factor * self.encode_s,
            decode_s=factor * self.decode_s,
            handling_s=factor * self.handling_s,
            wait_s=factor * self.wait_s,
        )

    def towards(self, other: ExchangeCost, share: float) -> ExchangeCost:
        """Return the linear interpolation between this cost (``share`` 0) and ``other`` (``share`` 1)."""
        pairs = zip(self._amounts(), other._amounts(), strict=True)
        return ExchangeCost(*(max(0, mine + share * (theirs - mine)) for mine, theirs in pairs))

    def _amounts(self) -> list[Any]:
        """Return the values of the numeric fields, which are all fields except the last, ``scales``."""
        return [getattr(self, name) for name in _AMOUNTS]


_AMOUNTS = tuple(each.name for each in fields(ExchangeCost))[:-1]
