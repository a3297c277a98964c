"""The CPU: tensors are in host memory already, and what must be copied is copied by whoever needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gradwire.devices.base import Device, Event, Stream, T


class Done(Event):
    """A moment that has passed."""

    def wait(self) -> None:
        """Return at once."""

    def order(self) -> None:
        """Do nothing."""


DONE = Done()


class _Load(Event):
    """A copy that the first wait for it makes, on that thread: the one that queued it has other work."""

    def __init__(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        self._left: tuple[torch.Tensor, torch.Tensor] | None = host, tensor

    def wait(self) -> None:
        """Copy, the first time."""
        left, self._left = self._left, None
        if left is not None:
            fetch(*left)

    def order(self) -> None:
        """Do the same: on the CPU the host is the device."""
        self.wait()


class CpuStream(Stream):
    """Copies, but for a tensor whose own memory the host's is."""

    current: AbstractContextManager[object] = nullcontext()
    """A block in which nothing is different."""

    def follow(self) -> None:
        """Do nothing: what was computed is there."""

    def load(self, host: torch.Tensor, tensor: torch.Tensor) -> Event:
        """Leave the copy, where one is needed, to whoever waits for it."""
        return DONE if host.data_ptr() == tensor.data_ptr() else _Load(host, tensor)

    def store(self, tensor: torch.Tensor, host: torch.Tensor) -> Event:
        """Copy at once, where that is needed."""
        if host.data_ptr() != tensor.data_ptr():
            bring_back(tensor, host)
        return DONE

    def complete(self, future: torch.futures.Future[Any], result: object) -> None:
        """Complete it."""
        future.set_result(result)


class Cpu(Device):
    """The host itself."""

    def __str__(self) -> str:
        return "cpu"

    def zeros(self, count: int) -> torch.Tensor:
        """Return so many zeros."""
        return torch.zeros(count, dtype=torch.float32, device="cpu")

    def pinned(self, count: int) -> torch.Tensor:
        """Return ordinary memory: no device copies from it."""
        return torch.empty(count, dtype=torch.float32, device="cpu")

    def stream(self) -> Stream:
        """Return the stream of all owners; it has no state."""
        return CPU_STREAM

    def launch(
        self,
        kernels: Callable[[], T],
        reads: Sequence[torch.Tensor],  # noqa: ARG002
        writes: Sequence[torch.Tensor],  # noqa: ARG002
    ) -> T:
        """Run them."""
        return kernels()

    def event(self) -> Event:
        """Return one that has passed."""
        return DONE

    def future(self) -> torch.futures.Future[Any]:
        """Return one of torch's."""
        return torch.futures.Future()


CPU_STREAM = CpuStream()
CPU = Cpu()


def fetch(host: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fill ``host`` (1-D) with the values of ``tensor``, in the order of its indices."""
    # Resolved, for copying halves to float32 forgets to negate what torch negates only when it is read.
    host.view(tensor.shape).copy_(tensor.detach().resolve_neg())


def bring_back(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Fill ``tensor`` with the values of ``host`` (1-D), rounded to its dtype."""
    with torch.inference_mode():  # outside, nobody may write a tensor that was made in this mode
        target, values = tensor.detach(), host.view(tensor.shape)
        target.copy_(values.to(target.dtype) if target.is_neg() else values)  # as in fetch


def serves(tensor: torch.Tensor) -> bool:
    """Return whether an exchange takes this tensor's own memory: contiguous float32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous() and not tensor.is_neg()
