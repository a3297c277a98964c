"""Buckets that are encoded and decoded on their device, so that only payloads cross its bus.

The kernels for codecs, sums, and residuals give the same bits as the host. The bucket is copied to the host
and exchanged there in three cases: the codec has no kernels, the residual is on the host, or the exchange is
a native all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast

import torch

from gradwire.codecs import Codec
from gradwire.collectives.frame_order import Action, Do
from gradwire.devices import CPU, device_of
from gradwire.exchange.feedback import ErrorFeedback, Ranges, gaps
from gradwire.exchange.in_python import PythonPayloads, tensor_of
from gradwire.exchange.norms import Norms
from gradwire.exchange.walk import RunPart
from gradwire.gpu.chunks import Decoding, queue_decode
from gradwire.gpu.table import SIZE_NBYTES, STATUS_NBYTES, format_of
from gradwire.gpu.transfers import begin_decode, encode_and_keep

_OTHERWISE = "encode on the host: Plan(encode_on='host')"


class _Compiled(Protocol):
    compiled: tuple[str, tuple[int, ...]]


class DeviceFeedback(ErrorFeedback):
    """Error feedback of a bucket on a device, computed by kernels that are queued there.

    The host waits for an event for each payload (with ``DevicePayloads``, only for each encoded payload), and
    for an event at the end. The codec must have kernels, and the residual must be on the bucket's device.
    Only ``commit`` changes the residual, and adds the sums of squares to the norms. Raises
    ``MissingPackageError`` without Triton.
    """

    ON_DEVICE: ClassVar[bool] = True

    def __init__(
        self,
        codec: Codec,
        tensor: torch.Tensor,
        residual: torch.Tensor | None = None,
        norms: Norms | None = None,
    ) -> None:
        super().__init__(codec)
        self._name, self._params = cast("_Compiled", codec).compiled
        self._format = format_of(self._name, _OTHERWISE)
        self._device, self._tensor, self._residual = device_of(tensor), tensor, residual
        self._measures = norms is not None and not (codec.EXACT and residual is None)
        self._norms = Norms([0, tensor.numel()]) if norms is None else norms
        self._norms.clear()
        with torch.inference_mode(mode=False):
            self._words = self._device.zeros(2).view(torch.int32)
            self._lost = None if residual is None else self._device.zeros(tensor.numel())
        self._payload = torch.empty(0, dtype=torch.uint8)
        self._finished: Ranges = []
        self._borders: torch.Tensor | None = None
        self._sums: torch.Tensor | None = None

    @property
    def _nonfinite(self) -> torch.Tensor:
        """The status word, which becomes 1 if a final value or a value of the new residual is non-finite."""
        return self._words[:1]

    def begin(self, tensor: torch.Tensor) -> None:
        """Measure this rank's own gradient, and add the residual."""
        if self._measures:
            self._carry_borders()
        if self._residual is not None:
            self._launch(lambda: self._queue_pass(_kernels().ADD, tensor, self._residual, 0, 0), [tensor])
        elif self._measures:
            self._launch(lambda: self._queue_pass(_kernels().LOOK, tensor, tensor, 0, 0), [])

    def encode(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Encode ``x`` on the device and copy the payload to ``out``, on the host."""
        self._payload = encode_and_keep(self._name, x, out, self._params)
        nbytes = self._payload.numel()
        self.crossed_nbytes += nbytes + (0 if self._format.is_fixed else SIZE_NBYTES)
        return out[:nbytes]

    encode_sum = encode  # no codec with kernels has a separate codec for sums

    def queue_decode(self, payload: torch.Tensor, elements: torch.Tensor, *, add: bool) -> Decoding:
        """Queue the decoding of a received payload, which the caller checks after an event."""
        return begin_decode(self._name, payload, elements, self._params, add=add)

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:  # noqa: ARG002
        """Queue the measurement of the encoding error of the sent values."""
        if not self._codec.EXACT and (self._measures or self._residual is not None):
            self._lose(elements, start, adopts=False)

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:  # noqa: ARG002
        """Queue the adoption of the decoded values, the measurement of their error, and the division."""
        if self._codec.EXACT:
            pass
        elif self._measures or self._residual is not None:
            self._lose(elements, start, adopts=True)
        else:
            self._launch(lambda: self._queue_decode(elements), [elements])
        self.finished(elements, start, ranks)

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        """Decode sums and queue their division."""
        self._codec.decode(payload, elements)
        self.finished(elements, start, ranks)

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:
        """Queue the division and the check that values are finite."""
        self._finished.append((start, start + elements.numel()))
        self._launch(lambda: _kernels().queue_finish(elements, ranks, self._nonfinite), [elements])

    def share_status(self, other: ErrorFeedback) -> None:
        """Use the status word of the bucket's part ``other``, so that both keep or replace residuals."""
        assert isinstance(other, DeviceFeedback)
        self._words = other._words

    def finish_rest(self) -> None:
        """Queue the checks of the partial sums of a reduce half."""
        if self._residual is not None:
            for start, stop in gaps(self._finished, self._tensor.numel()):
                self.finished(self._tensor[start:stop], start)

    def commit(self, *, keeps: bool = False) -> None:
        """Store the encoding error as the residual, and wait until the whole bucket is complete."""
        residual, lost = self._residual, self._lost
        if residual is not None and lost is not None and not keeps:
            self._launch(lambda: _kernels().queue_keep(residual, lost, self._nonfinite), [residual])
        with torch.inference_mode(mode=False):
            word = self._device.pinned(1).view(torch.int32)
            sums = self._device.pinned(2 * self._norms.sums.numel()).view(torch.float64)
        self._launch(lambda: self._carry_back(word, sums), [word, sums])
        self._device.event().wait()
        self.finite = not int(word)
        self.crossed_nbytes += STATUS_NBYTES
        if self._sums is not None:
            self._norms.sums.copy_(sums.view_as(self._norms.sums))
            self.crossed_nbytes += sums.nbytes

    def _lose(self, elements: torch.Tensor, start: int, *, adopts: bool) -> None:
        lost = None if self._lost is None else self._lost[start : start + elements.numel()]

        def queue() -> None:
            decoded = torch.empty_like(elements) if lost is None else lost
            self._queue_decode(decoded)
            how = _kernels().ADOPT if adopts else _kernels().SUBTRACT
            self._queue_pass(how, elements, decoded, start, 1)

        self._launch(queue, [elements, *([] if lost is None else [lost])])

    def _queue_decode(self, out: torch.Tensor) -> None:
        queue_decode(self._format, self._payload, out, self._params, add=False)

    def _queue_pass(self, how: int, x: torch.Tensor, y: torch.Tensor | None, start: int, row: int) -> None:
        """Queue a pass, which adds to 1 row of sums, or to 3 for errors without a residual."""
        rows = 1 if row == 0 or self._residual is not None else 3
        sums = None if self._sums is None else self._sums[row : row + rows]
        counts = self._residual is not None and row > 0
        word = self._nonfinite if counts else self._words[1:]
        _kernels().queue_pass(how, x, y, word, start, self._borders, sums)

    def _carry_borders(self) -> None:
        borders = self._norms.borders
        with torch.inference_mode(mode=False):
            there = self._device.pinned(2 * borders.numel()).view(torch.int64)
        there.copy_(borders)
        self.crossed_nbytes += borders.nbytes

        def carry() -> tuple[torch.Tensor, torch.Tensor]:
            place = self._tensor.device
            sums = torch.zeros(self._norms.sums.shape, dtype=torch.float64, device=place)
            return there.to(place, non_blocking=True), sums

        self._borders, self._sums = self._device.launch(carry, [there], [])

    def _carry_back(self, word: torch.Tensor, sums: torch.Tensor) -> None:
        word.copy_(self._nonfinite, non_blocking=True)
        if self._sums is not None:
            sums.copy_(self._sums.view(-1), non_blocking=True)

    def _launch(self, kernels: Callable[[], None], written: Sequence[torch.Tensor]) -> None:
        """Launch kernels that may read any tensor of this run, and write ``written`` and the status words."""
        kept = [each for each in (self._residual, self._lost) if each is not None]
        self._device.launch(kernels, [self._tensor, *kept], [*written, self._words])


class DevicePayloads(PythonPayloads):
    """The encoder and decoder of the native engine's segments on their device, where Python launches kernels.

    The engine doesn't need the device for forwarded payloads. The host waits for the device once for each
    encoded payload, and once at the end. These waits also complete all earlier decodings, which are checked
    then. So no frame is sent that follows from a malformed payload.

    Attributes
    ----------
    crossed_nbytes
        The number of bytes of received payloads, and of their status, that crossed the device's bus.
    """

    def __init__(self, parts: Sequence[RunPart], actions: list[Action], ranks: int) -> None:
        super().__init__(parts, actions, ranks)
        self.crossed_nbytes = 0
        self._decodings: list[tuple[int, Decoding]] = []

    def encode(self, number: int, memory: memoryview) -> int:
        """Encode a segment to ``memory``, and return the payload's size. Raises ``PayloadError``."""
        nbytes = super().encode(number, memory)
        self._check()
        return nbytes

    def take(self, number: int, memory: memoryview) -> None:
        """Queue the decoding of a received payload. Raises ``PayloadError`` for a wrong length."""
        (action, part, elements), payload = self._begin(number), tensor_of(memory)
        assert isinstance(part.feedback, DeviceFeedback)
        self.crossed_nbytes += payload.numel() + STATUS_NBYTES
        decoding = part.feedback.queue_decode(payload, elements, add=action.do is Do.ADD)
        self._decodings.append((number, decoding))
        if action.do is Do.STORE:
            part.feedback.finished(elements, action.segment.start, self._ranks)
        self.action = None

    def finish(self) -> None:
        """Wait for the remaining decodings. Raises ``PayloadError``."""
        if self._decodings:
            device_of(self._parts[0].tensor).event().wait()
            self._check()

    def _check(self) -> None:
        """Check the queued decodings, all of which are complete."""
        decodings, self._decodings = self._decodings, []
        for self.action, decoding in decodings:
            decoding.check()
        self.action = None


def divide(tensor: torch.Tensor, ranks: int) -> None:
    """Divide a float32 tensor in place, on its device's current stream, with equal bits on every device."""
    device = device_of(tensor)
    if device is CPU:
        tensor.div_(ranks)
    else:
        word = device.zeros(1).view(torch.int32)
        device.launch(lambda: _kernels().queue_finish(tensor, ranks, word), [tensor, word], [tensor, word])


@cache
def _kernels() -> Any:
    return import_module("gradwire.gpu.feedback")  # imports Triton
