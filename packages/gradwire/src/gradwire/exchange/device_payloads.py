"""The payloads of a bucket on a device, for a run of the native engine.

The engine sends, receives, validates, and forwards frames without the interpreter lock. For each payload that
this rank encodes or decodes, the engine takes the lock once, because Python launches the kernels. Forwarded
payloads don't need the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.collectives.frame_order import Action, Do
from gradwire.devices import device_of
from gradwire.exchange.on_device import DeviceFeedback
from gradwire.exchange.walk import RunPart
from gradwire.gpu.chunks import Decoding
from gradwire.gpu.table import STATUS_NBYTES

_ON_DEVICE = torch.empty(0, dtype=torch.uint8, device="cpu")
"""The empty payload for ``DeviceFeedback``, which reads the payload's copy on the device instead."""


class DevicePayloads:
    """The encoder and decoder of one run's segments on their device, by the index of an action.

    The host waits for the device once for each encoded payload, and once at the end. These waits also
    complete all earlier decodings, which are checked then. So no frame is sent that follows from a malformed
    payload.

    Attributes
    ----------
    crossed_nbytes
        The number of bytes of received payloads, and of their status, that crossed the device's bus.
    action
        The index of the action whose kernels are being queued or awaited; after an error, the failed action.
    """

    def __init__(self, parts: Sequence[RunPart], actions: list[Action], ranks: int) -> None:
        self.crossed_nbytes = 0
        self.action: int | None = None
        self._parts, self._actions, self._ranks = parts, actions, ranks
        self._sent: int | None = None
        self._decodings: list[tuple[int, Decoding]] = []

    def encode(self, number: int, memory: memoryview) -> int:
        """Encode a segment to ``memory``, and return the payload's size. Raises ``PayloadError``."""
        feedback, elements = self._begin(number)
        payload = feedback.encode(elements, _bytes_of(memory))
        self._check()
        self._sent, self.action = number, None
        return payload.numel()

    def take(self, number: int, memory: memoryview) -> None:
        """Queue the decoding of a received payload. Raises ``PayloadError`` for a wrong length."""
        (feedback, elements), payload = self._begin(number), _bytes_of(memory)
        action = self._actions[number]
        self.crossed_nbytes += payload.numel() + STATUS_NBYTES
        decoding = feedback.queue_decode(payload, elements, add=action.do is Do.ADD)
        self._decodings.append((number, decoding))
        if action.do is Do.STORE:
            feedback.finished(elements, action.segment.start, self._ranks)
        self.action = None

    def finish(self) -> None:
        """Wait for the remaining decodings. Raises ``PayloadError``."""
        self._finish_sent()
        if self._decodings:
            device_of(self._parts[0].tensor).event().wait()
            self._check()
        self.action = None

    def _begin(self, number: int) -> tuple[DeviceFeedback, torch.Tensor]:
        """Queue the last kernels of the previous action; return this action's error feedback and segment."""
        self._finish_sent()
        self.action = number
        return self._of(number)

    def _of(self, number: int) -> tuple[DeviceFeedback, torch.Tensor]:
        segment = self._actions[number].segment
        part = self._parts[segment.part]
        assert isinstance(part.feedback, DeviceFeedback)
        return part.feedback, part.tensor[segment.start : segment.stop]

    def _finish_sent(self) -> None:
        """Queue the error feedback of the segment that was sent last, whose frame is now in flight."""
        number, self._sent = self._sent, None
        if number is None:
            return
        self.action = number
        (feedback, elements), action = self._of(number), self._actions[number]
        if action.do is Do.SEND_PARTIAL:
            feedback.sent(_ON_DEVICE, elements, action.segment.start)
        else:
            feedback.published(_ON_DEVICE, elements, action.segment.start, self._ranks)

    def _check(self) -> None:
        """Check the queued decodings, all of which are complete."""
        decodings, self._decodings = self._decodings, []
        for self.action, decoding in decodings:
            decoding.check()


def _bytes_of(memory: memoryview) -> torch.Tensor:
    """Return ``memory`` as a tensor, even if it is empty, which torch's ``frombuffer`` refuses."""
    return torch.frombuffer(memory, dtype=torch.uint8) if memory.nbytes else _ON_DEVICE
