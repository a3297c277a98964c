"""Ranks as threads of one process, with frames copied from memory to memory and no simulated network.

A frame is copied when its send and its receive match; until then both wait. This rendezvous is the strictest
behaviour that the contract allows: a program without a deadlock here has none on links that buffer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import permutations
from threading import TIMEOUT_MAX

import torch

from gradwire.errors import LinkError, LinkTimeoutError, no_progress
from gradwire.links.base import Activity, Link


class _Transfer:
    """One end of a frame's transfer: a send or a receive."""

    def __init__(
        self, channel: _Channel, tensor: torch.Tensor, what: str, timeout_s: float, *, receives: bool = False
    ) -> None:
        self.channel, self.tensor, self.what, self.timeout_s = channel, tensor, what, timeout_s
        self.done, self._receives = False, receives
        self.failure: str | None = None

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> torch.Tensor:
        """Wait for the other end of the frame, and return the frame. Raises ``LinkError``."""
        channel, limit_s = self.channel, self.timeout_s if timeout_s is None else timeout_s
        began = time.monotonic()
        with channel.changed:
            while not self.done and self.failure is None and channel.closed_by is None:
                since = max(began, channel.activity.moved_at) if keepalive else began
                left_s = since + limit_s - time.monotonic()
                if left_s <= 0:
                    break
                channel.changed.wait(min(left_s, TIMEOUT_MAX))
            if self.done:
                return self.tensor
            if self._receives and channel.last is not None:
                return channel.last
            if self.failure is not None:
                raise LinkError(self.failure)
            if channel.closed_by is not None:
                raise LinkError(f"{self.what}: rank {channel.closed_by} has closed its link")
        raise LinkTimeoutError(f"{self.what}: {no_progress(limit_s)}")


class _Channel:
    """One direction between two ranks, with sends and receives matched in order."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.changed = threading.Condition()
        self.sends: deque[_Transfer] = deque()
        self.receives: deque[_Transfer] = deque()
        self.closed_by: int | None = None
        self.last: torch.Tensor | None = None  # the last frame of a sender that has left

    def post(self, transfer: _Transfer, queue: deque[_Transfer]) -> None:
        with self.changed:
            if self.closed_by is not None:
                return  # the transfer's wait raises the error
            queue.append(transfer)
            if self.sends and self.receives:
                send, receive = self.sends.popleft(), self.receives.popleft()
                size, room = send.tensor.numel(), receive.tensor.numel()
                if size > room:
                    send.failure = receive.failure = (
                        f"{receive.what}: expected at most {room} bytes, got {size}; use the same plan on "
                        "all ranks"
                    )
                else:
                    receive.tensor = receive.tensor[:size].copy_(send.tensor)
                    send.done = receive.done = True
                self.activity.moved_at = time.monotonic()
                self.changed.notify_all()

    def close(self, rank: int) -> None:
        with self.changed:
            if self.closed_by is None:
                self.closed_by = rank
            self.sends.clear()
            self.receives.clear()
            self.changed.notify_all()


class LoopbackLink(Link):
    """The link of one rank within this process. ``loopback`` creates the links of all ranks."""

    HAS_PARTINGS = True

    def __init__(
        self,
        rank: int,
        world: int,
        channels: dict[tuple[int, int], _Channel],
        activity: Activity,
        timeout_s: float,
    ) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        self._channels, self._activity = channels, activity

    def isend(self, to: int, frame: torch.Tensor) -> _Transfer:
        """Start to send ``frame`` to the rank ``to``."""
        channel = self._channels[self.rank, to]
        sending = _Transfer(channel, frame, f"rank {self.rank} sending to rank {to}", self.timeout_s)
        channel.post(sending, channel.sends)
        return sending

    def irecv(self, source: int, buffer: torch.Tensor) -> _Transfer:
        """Start to receive a frame from the rank ``source`` into ``buffer``."""
        channel = self._channels[source, self.rank]
        what = f"rank {self.rank} receiving from rank {source}"
        receiving = _Transfer(channel, buffer, what, self.timeout_s, receives=True)
        channel.post(receiving, channel.receives)
        return receiving

    def keep_alive(self, timeout_s: float) -> None:  # noqa: ARG002 - all ranks share the activity
        """Report to all ranks that frames are still moving on this rank."""
        self._activity.moved_at = time.monotonic()

    def leave(self, frame: torch.Tensor) -> None:
        """Deliver ``frame`` to each peer's pending and later receives, and close the link."""
        for (sender, _), channel in self._channels.items():
            if sender == self.rank and channel.closed_by is None:
                channel.last = frame
        self.close()

    def close(self) -> None:
        """Close the link. Every wait for this rank ends with an error immediately."""
        for ends, channel in self._channels.items():
            if self.rank in ends:
                channel.close(self.rank)


def loopback(world: int, timeout_s: float = 30.0) -> list[Link]:
    """Return the links of ``world`` ranks as threads of this process, in rank order."""
    activity = Activity()  # shared by all ranks
    channels = {(a, b): _Channel(activity) for a, b in permutations(range(world), 2)}
    return [LoopbackLink(rank, world, channels, activity, timeout_s) for rank in range(world)]
