"""Deltas that a device applies: the host reads their headers, and kernels decode their bodies."""

from __future__ import annotations

import torch

from gradwire import _native
from gradwire.devices import Event, device_of, on_host
from gradwire.entropy.coder import DeltaHeader
from gradwire.entropy.delta import DeltaDecoder, WordName
from gradwire.errors import PayloadError
from gradwire.gpu.table import delta_kernels


class DeviceDeltaDecoder:
    """A receiver of deltas on an accelerator: it applies them to weights in place, and keeps their version.

    The host waits for the device only to compare a hash. So a malformed payload leaves the weights as they
    are, and the next call raises its error. Raises
    ``MissingPackageError`` without Triton.

    Parameters
    ----------
    dtype
        ``"bf16"`` or ``"fp32"``, as in the encoder.
    """

    def __init__(self, dtype: WordName = "bf16") -> None:
        self._queue, self._faults = delta_kernels()
        self._decoder = DeltaDecoder(dtype)
        self._fault: tuple[torch.Tensor, Event] | None = None

    @property
    def version(self) -> int | None:
        """The version of the weights, as in ``DeltaDecoder``."""
        return self._decoder.version

    def apply(self, payload: torch.Tensor, copy: torch.Tensor, weights: torch.Tensor) -> int:
        """Queue the update of ``weights`` to the payload's version, and return that version.

        ``copy`` is the payload in host memory. Raises what ``DeltaDecoder.apply`` does.
        """
        header = DeltaHeader.read(copy)
        try:
            self._confirm()
        except PayloadError:
            if header.base is not None:  # a full copy replaces the refused delta
                raise
        self._decoder.check(header, payload.numel(), weights)
        if weights.numel():
            self._launch(payload[header.nbytes :], weights, header)
        self._decoder.take(header, lambda: _native.hash64(on_host(weights)))
        return header.version

    def _launch(self, body: torch.Tensor, weights: torch.Tensor, header: DeltaHeader) -> None:
        device = device_of(weights)
        with torch.inference_mode(mode=False):
            fault = device.pinned(1).view(torch.int32)

        def queue() -> None:
            if header.plain:
                weights.view(torch.uint8).copy_(body)
                status = torch.zeros(1, dtype=torch.int32, device=weights.device)
            else:
                status = self._queue(body, weights, full=header.base is None)
            fault.copy_(status, non_blocking=True)

        device.launch(queue, [body, weights], [weights, fault])
        self._fault = fault, device.event()

    def _confirm(self) -> None:
        """Raise the error of the last payload, if it was malformed."""
        last, self._fault = self._fault, None
        if last is None:
            return
        fault, event = last
        event.wait()
        if int(fault):
            self._decoder.version = None
            raise PayloadError(
                f"the last payload was no delta of these weights: {self._faults[int(fault) - 1]}; "
                "send a full copy"
            )
