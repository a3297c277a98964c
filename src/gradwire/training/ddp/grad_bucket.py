"""DDP's buckets on their way through host memory: as float32 for the exchange, and back as they were."""

from __future__ import annotations

from typing import Protocol

import torch

from gradwire.devices import Staged, device_of


class DDPBucket(Protocol):
    """What ``torch.distributed.GradBucket`` says of a bucket."""

    def index(self) -> int:
        """Return its number, from 0 up."""

    def is_last(self) -> bool:
        """Return whether it is the last one of its backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients, 1-D unless they are sparse."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of their gradients in the buffer."""


class GradientBucket:
    """One bucket of one backward pass: dense, 1-D, of a dtype of ``FLOATS``, on any device.

    Made on the thread that fills the bucket. ``load`` and ``deliver`` are the communication thread's.

    Attributes
    ----------
    averaged
        What DDP waits for: torch's own kind of future. That of an accelerator makes DDP's streams wait for
        the copy that ``deliver`` begins, and the host does not.
    """

    def __init__(self, buffer: torch.Tensor) -> None:
        self.averaged: torch.futures.Future[torch.Tensor] = device_of(buffer).future()
        self._staged = Staged(buffer)

    def load(self) -> torch.Tensor:
        """Return the gradients: 1-D float32 on the CPU, the caller's to change."""
        return self._staged.floats()

    def deliver(self) -> None:
        """Copy what ``load`` returned into the bucket, rounded to its dtype, and complete ``averaged``."""
        self._staged.store().complete(self.averaged, self._staged.tensor)


def completed(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Return a future of a bucket that nobody exchanges."""
    averaged: torch.futures.Future[torch.Tensor] = device_of(buffer).future()
    averaged.set_result(buffer)
    return averaged
