"""Segments that Python encodes and decodes for the native engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.collectives.frame_order import Action
from gradwire.costs import Scales
from gradwire.exchange.walk import RunPart, scales_of


class PythonPayloads:
    """The encoder and decoder of segments whose codec only Python can run, by the index of an action.

    The engine takes the interpreter lock for each payload that this rank encodes or decodes. It exchanges
    the parts of compiled codecs without the lock, in the same run.

    Attributes
    ----------
    scales
        The scales of the frames that were encoded so far.
    action
        The index of the action that is being encoded or decoded; after an error, the failed action.
    """

    def __init__(self, parts: Sequence[RunPart], actions: list[Action], ranks: int) -> None:
        self.scales = Scales()
        self.action: int | None = None
        self._parts, self._actions, self._ranks = parts, actions, ranks

    def encode(self, number: int, memory: memoryview) -> int:
        """Encode a segment to ``memory``, and return the payload's size. Raises what the codec raises."""
        action, part, elements = self._begin(number)
        payload = part.encoder(action)(elements, tensor_of(memory))
        self.scales += scales_of(part.framer.codec, payload)
        self.action = None
        return payload.numel()

    def sent(self, number: int, memory: memoryview) -> None:
        """Measure the error of an encoded payload, and adopt the decoded values of finished sums."""
        action, part, elements = self._begin(number)
        part.sent(action, tensor_of(memory), elements, self._ranks)
        self.action = None

    def take(self, number: int, memory: memoryview) -> None:
        """Add or store a received payload. Raises ``PayloadError``."""
        action, part, elements = self._begin(number)
        part.take(action, tensor_of(memory), elements, self._ranks)
        self.action = None

    def _begin(self, number: int) -> tuple[Action, RunPart, torch.Tensor]:
        """Return an action, its part, and its values, and name the action in errors."""
        self.action = number
        action = self._actions[number]
        part = self._parts[action.segment.part]
        return action, part, part.elements(action.segment)


def tensor_of(memory: memoryview) -> torch.Tensor:
    """Return ``memory`` as a tensor, even if it is empty, which torch's ``frombuffer`` refuses."""
    if not memory.nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(memory, dtype=torch.uint8)
