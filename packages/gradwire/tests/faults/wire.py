"""What the matrix does to frames: they pass until one meets a fault."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable

import torch

from faults.case import TIMEOUT_S, Case
from gradwire import _native
from gradwire.links import Sending
from gradwire.links.base import Link
from gradwire.wire import HEADER_NBYTES
from support.faulty_link import Fault, FaultyLink

FrameAct = Callable[["Armed", int, torch.Tensor], Sending]
_CRAWL_FRAMES = 8
_FLIPS, _SLOW_FRAMES, _SLOW_S = 40, 10, 0.01
_VERSION_AT, _CODEC_AT, _FINGERPRINT_AT = 4, 5, 20


class Armed:
    """Counts frames from ``arm`` on and gives the one that it was armed for to the act instead.

    ``inner`` takes the frames, and ``cut`` cuts the connection to one rank.
    """

    def __init__(self, inner: Link, cut: Callable[[int], None]) -> None:
        self.rank, self.inner, self.cut = inner.rank, inner, cut
        self.struck = False
        self._turn = threading.Lock()  # the connections of a relay have threads of their own
        self._act: FrameAct | None = None
        self._left = 0

    def arm(self, act: FrameAct, frame: int) -> None:
        """Let ``act`` happen to the frame number ``frame`` from now on."""
        with self._turn:
            self._left, self._act = frame, act

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        """Start sending a frame, or let its fault happen."""
        with self._turn:
            act = self._act if self._left == 0 else None
            if act is None:
                self._left -= 1
            else:
                self._act, self.struck = None, True
        return self.inner.isend(to, frame) if act is None else act(self, to, frame)


def frame_act(case: Case) -> FrameAct:
    """Return what the row of ``case`` does to a frame."""
    assert case.row is not None
    own: dict[str, FrameAct] = {
        "kill": _signalled(signal.SIGKILL),
        "stop": _signalled(signal.SIGSTOP),
        "swap": _swapped,
        "crawl": _crawling(_CRAWL_FRAMES),
        "cut": _cut,
        "flip": _flipping(_FLIPS),
        "version 9": _forged(_VERSION_AT, bytes([9])),
        "codec 250": _forged(_CODEC_AT, bytes([250])),
        "parameters": _forged(_FINGERPRINT_AT, struct.pack("<I", 0xBAD0_0000 + case.number)),
        "corrupt header": _faulty(Fault("corrupt", 0, 0, bit=case.number)),
        "corrupt payload": _faulty(Fault("corrupt", 0, 0, bit=-1 - case.number)),
        "truncate": _faulty(Fault("truncate", 0, 0)),
        "drop": _faulty(Fault("drop", 0, 0)),
        "duplicate": _faulty(Fault("duplicate", 0, 0)),
        "delay": _faulty(Fault("delay", 0, 0, seconds=case.timeout_s * (0.1 + 0.2 * case.number / 200))),
    }
    return own[case.row.act]


def _faulty(fault: Fault) -> FrameAct:
    def act(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
        own = Fault(fault.kind, wire.rank, 0, fault.seconds, fault.bit)
        return FaultyLink(wire.inner, [own]).isend(to, frame)

    return act


def _signalled(blow: signal.Signals) -> FrameAct:
    def act(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
        os.kill(os.getpid(), blow)
        return wire.inner.isend(to, frame)

    return act


def _forged(at: int, field: bytes) -> FrameAct:
    """Write ``field`` into the header and make its checksum right: another gradwire, not a broken line."""

    def act(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
        head = bytearray(frame[: HEADER_NBYTES - 4].numpy().tobytes())
        head[at : at + len(field)] = field
        checksum = _native.crc32c(torch.frombuffer(head, dtype=torch.uint8))
        forged = frame.clone()
        forged[:HEADER_NBYTES] = torch.frombuffer(head + struct.pack("<I", checksum), dtype=torch.uint8)
        return wire.inner.isend(to, forged)

    return act


def _crawling(frames: int) -> FrameAct:
    """Let so many frames leave late, one after the other, which takes longer than the timeout."""

    def act(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
        time.sleep(1.4 * TIMEOUT_S / _CRAWL_FRAMES)
        if frames > 1:
            wire.arm(_crawling(frames - 1), 0)
        return wire.inner.isend(to, frame)

    return act


def _cut(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
    """Cut the connection to the rank that this frame is for; the others stay."""
    wire.cut(to)
    return wire.inner.isend(to, frame)


def _flipping(left: int) -> FrameAct:
    """Let this many frames leave in turn at a tenth of the rate and as fast as they can, ten of each."""

    def act(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
        if left // _SLOW_FRAMES % 2 == 0:
            time.sleep(_SLOW_S)
        if left > 1:
            wire.arm(_flipping(left - 1), 0)
        return wire.inner.isend(to, frame)

    return act


def _swapped(wire: Armed, to: int, frame: torch.Tensor) -> Sending:
    """Keep this frame back until the next one for the same rank has gone."""
    kept = frame.clone()

    def overtake(wire: Armed, other: int, frame: torch.Tensor) -> Sending:
        sending = wire.inner.isend(other, frame)
        if other == to:
            held.frames.append(wire.inner.isend(to, kept))
        else:
            wire.arm(overtake, 0)
        return sending

    held = Held()
    wire.arm(overtake, 0)
    return held


class Held:
    """A frame that leaves later; whoever waits for it does not learn when."""

    def __init__(self) -> None:
        self.frames: list[Sending] = []

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> None:  # noqa: ARG002
        return
