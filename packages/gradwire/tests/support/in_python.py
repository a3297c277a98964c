"""A link that leaves exchanges to Python, which is the native engine's definition."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.links import Link
from gradwire.links.base import Wrapper
from gradwire.wire import memory_of


class InPython(Wrapper):
    """A link that the native engine can't use; it notes the frames that it sends and receives."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.frames: list[bytes] = []

    def isend(self, to: int, frame: torch.Tensor) -> Any:
        """Note a frame, and send it."""
        self.frames.append(bytes(memory_of(frame)))
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Any:
        """Receive a frame, which is noted when it has arrived."""
        return Noted(self._inner.irecv(source, buffer), self.frames)


class Noted:
    """A receive that notes its frame."""

    def __init__(self, inner: Any, frames: list[bytes]) -> None:
        self._inner, self._frames = inner, frames

    def wait(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Return the frame."""
        frame: torch.Tensor = self._inner.wait(*arguments, **named)
        self._frames.append(bytes(memory_of(frame)))
        return frame
