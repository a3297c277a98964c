"""Segments whose codec only Python can run, encoded and decoded for the native engine."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.collectives.frame_order import Action
from gradwire.costs import Scales
from gradwire.exchange.on_device import bytes_of
from gradwire.exchange.walk import RunPart, scales_of


class PythonPayloads:
    """The encoder and decoder of the segments of Python codecs, by the index of an action.

    The engine takes the interpreter lock once for each payload that this rank encodes or decodes. It
    exchanges the parts of compiled codecs without the lock, in the same run.

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
        self.action = number
        action = self._actions[number]
        part = self._parts[action.segment.part]
        elements = part.elements(action.segment)
        payload = part.encoder(action)(elements, bytes_of(memory))
        self.scales += scales_of(part.framer.codec, payload)
        part.sent(action, payload, elements, self._ranks)
        self.action = None
        return payload.numel()

    def take(self, number: int, memory: memoryview) -> None:
        """Add or store a received payload. Raises ``PayloadError``."""
        self.action = number
        action = self._actions[number]
        part = self._parts[action.segment.part]
        part.take(action, bytes_of(memory), part.elements(action.segment), self._ranks)
        self.action = None
