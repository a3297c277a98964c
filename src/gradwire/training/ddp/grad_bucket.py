"""DDP's buckets on their way through host memory: float32 on the CPU for the exchange, and back as they were.

``load`` and ``deliver`` are the communication thread's. ``averaged`` is what DDP waits for: torch's own kind
of future, which on CUDA carries the stream's event along, so that DDP's streams wait for the copy and the
host does not.
"""

from __future__ import annotations

from typing import Protocol

import torch

EXCHANGED = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that float32 holds exactly."""


class DDPBucket(Protocol):
    """What ``torch.distributed.GradBucket`` says of a bucket."""

    def index(self) -> int:
        """Return its number, from 0 up."""

    def is_last(self) -> bool:
        """Tell whether it is the last one of its backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients, 1-D unless they are sparse."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of their gradients in the buffer."""


class GradientBucket(Protocol):
    """One bucket of one backward pass."""

    averaged: torch.futures.Future[torch.Tensor]

    def load(self) -> torch.Tensor:
        """Return the gradients: 1-D float32 on the CPU, the caller's to change."""

    def deliver(self, values: torch.Tensor) -> None:
        """Write ``values``, of ``load``, into the bucket, rounded to its dtype, and complete ``averaged``."""


def gradient_bucket(buffer: torch.Tensor) -> GradientBucket:
    """Return the way for ``buffer``: dense, 1-D, of a dtype of ``EXCHANGED``, on any device."""
    return HostBucket(buffer) if buffer.device.type == "cpu" else CudaBucket(buffer)


class HostBucket:
    """A bucket in host memory; float32 is exchanged where it lies."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.averaged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._buffer = buffer

    def load(self) -> torch.Tensor:
        """Return the buffer itself, or its copy in float32."""
        return self._buffer.float()

    def deliver(self, values: torch.Tensor) -> None:
        """Write ``values`` back where they are a copy, and complete ``averaged``."""
        if values is not self._buffer:
            self._buffer.copy_(values)
        self.averaged.set_result(self._buffer)


class CudaBucket:
    """A bucket on a GPU: copied to pinned memory and back on a stream of its own, beside backward's.

    Made on the stream that fills the bucket; the copy begins when the bucket is full. torch's allocator of
    pinned memory keeps blocks until the copies that use them have ended, so a block per bucket and step costs
    little.
    """

    def __init__(self, buffer: torch.Tensor) -> None:
        self.averaged: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device])
        self._buffer = buffer
        self._stream = torch.cuda.Stream(buffer.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(buffer.device))
        self._pinned = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        with torch.cuda.stream(self._stream):
            self._pinned.copy_(buffer, non_blocking=True)
        buffer.record_stream(self._stream)

    def load(self) -> torch.Tensor:
        """Wait for the copy; return it, in float32."""
        self._stream.synchronize()
        return self._pinned.float()

    def deliver(self, values: torch.Tensor) -> None:
        """Start the copy back; ``averaged`` makes who waits for it wait for that copy, too."""
        if values is not self._pinned:
            self._pinned.copy_(values)
        with torch.cuda.stream(self._stream):
            self._buffer.copy_(self._pinned, non_blocking=True)
            self.averaged.set_result(self._buffer)
