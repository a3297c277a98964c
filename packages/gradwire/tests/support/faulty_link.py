"""A link that misbehaves on purpose, at chosen frames."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from gradwire.errors import LinkError
from gradwire.links.base import Link, Receiving, Sending, Wrapper

Kind = Literal["fail", "delay", "corrupt", "truncate", "drop", "duplicate"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one frame.

    Parameters
    ----------
    kind
        ``fail``: the link breaks instead of sending; ``delay``: the frame leaves ``seconds`` later;
        ``corrupt``: one bit is flipped; ``truncate``: the second half is missing; ``drop``: it never leaves;
        ``duplicate``: it is sent twice.
    rank
        The rank that sends the frame.
    step
        The number of the frame among those that this rank sends, from 0.
    seconds
        How long to delay.
    bit
        Which bit of the frame to flip, modulo its length.
    """

    kind: Kind
    rank: int
    step: int
    seconds: float = 0.0
    bit: int = 0


class FaultyLink(Wrapper):
    """A link over another one; the faults of its own rank happen to what it sends."""

    def __init__(self, inner: Link, faults: Iterable[Fault]) -> None:
        super().__init__(inner)
        self._faults = [fault for fault in faults if fault.rank == self.rank]
        self._sent = 0

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start sending ``frame``, or what the faults make of it."""
        due = [fault for fault in self._faults if fault.step == self._sent]
        self._sent += 1
        copies = 1
        for fault in due:
            if fault.kind == "fail":
                self._inner.close()
                raise LinkError(
                    f"{self.name_of(self.rank)} sending to {self.name_of(to)}: the link broke, as its faults "
                    "ask"
                )
            if fault.kind == "delay":
                time.sleep(fault.seconds)
            elif fault.kind == "corrupt":
                frame = _flipped(frame, fault.bit)
            elif fault.kind == "truncate":
                frame = frame[: frame.numel() // 2]
            else:
                copies = {"drop": 0, "duplicate": 2}[fault.kind]
        # Nobody waits until a repeated frame has left; once the first has, its buffer may be filled anew.
        frames = [frame, frame.clone()] if copies == 2 else [frame][:copies]
        return _Copies([self._inner.isend(to, each) for each in frames])

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        """Start receiving; nothing happens to what comes in."""
        return self._inner.irecv(source, buffer)


class _Copies:
    """A frame on its way out, or none, or two: only the first can count on a receiver."""

    def __init__(self, sendings: list[Sending]) -> None:
        self._sendings = sendings

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> None:
        for sending in self._sendings[:1]:
            sending.wait(timeout_s, keepalive)


def _flipped(frame: torch.Tensor, bit: int) -> torch.Tensor:
    at = bit % (8 * frame.numel())
    altered = frame.clone()
    altered[at // 8] ^= 1 << at % 8
    return altered
