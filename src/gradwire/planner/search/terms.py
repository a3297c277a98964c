"""The parts of an exchange's time: what a rank's thread does, and what it waits for."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds and bytes of one exchange, or of several one after the other.

    The seconds are those of the rank that is done last, on whose thread ``encode_s``, ``decode_s``,
    ``handling_s`` (handing frames over and taking them) and ``wait_s`` (for frames, lines and cores) follow
    one another. The bytes are those of the rank that sends most. ``cores_s`` is for how long the exchange
    would keep every core of a shared machine busy; 0 where each rank has a machine of its own.
    """

    encode_s: float = 0.0
    decode_s: float = 0.0
    handling_s: float = 0.0
    wait_s: float = 0.0
    raw_nbytes: float = 0.0
    wire_nbytes: float = 0.0
    cores_s: float = 0.0

    @property
    def work_s(self) -> float:
        """Seconds in which the thread works."""
        return self.encode_s + self.decode_s + self.handling_s

    @property
    def total_s(self) -> float:
        """Seconds until the last rank is done."""
        return self.work_s + self.wait_s

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def towards(self, other: Terms, share: float) -> Terms:
        """Return what is ``share`` of the way to ``other``: 0 is here, 1 is there, 2 as far again."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Terms(*(max(0.0, mine + share * (theirs - mine)) for mine, theirs in pairs))
