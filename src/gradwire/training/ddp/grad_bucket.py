"""What DDP says of a bucket, and the future that it waits for."""

from __future__ import annotations

from typing import Protocol

import torch

from gradwire.devices import device_of


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


Averaged = torch.futures.Future[torch.Tensor]
"""What DDP waits for: torch's own kind of future, of a bucket with its averages."""


def awaited(buffer: torch.Tensor) -> Averaged:
    """Return the future of a bucket.

    That of an accelerator makes DDP's streams wait for the copy back to it, and the host does not.
    """
    averaged: Averaged = device_of(buffer).future()
    return averaged
