"""Host memory in float32 that stands in for tensors which no exchange takes as they are.

An exchange takes contiguous float32 on the CPU. A tensor of half the precision is widened, which is exact,
and rounded on its way back. One on an accelerator is copied into pinned memory and back, on the stream that
is current when the copy is asked for; the host waits for each copy.
"""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""What can be exchanged as float32: these, exactly."""


class Staging:
    """One buffer that grows to the largest tensor it has stood in for."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for ``tensor``: its own where an exchange takes that, else this buffer's, unfilled.

        1-D float32 on the CPU, with as many elements. It serves until the next call.
        """
        if _serves(tensor):
            return tensor.detach().view(-1)
        count, pinned = tensor.numel(), tensor.device.type != "cpu"
        if self._memory is None or self._memory.numel() < count or self._memory.is_pinned() != pinned:
            with torch.inference_mode(mode=False):  # it is used again outside
                self._memory = torch.empty(count, dtype=torch.float32, device="cpu", pin_memory=pinned)
        return self._memory[:count]


def fetch(stand_in: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fill ``stand_in`` with the values of ``tensor``; they are there on return."""
    source = tensor.detach().view(-1)
    if source.device.type == "cpu":
        if source.data_ptr() != stand_in.data_ptr():
            stand_in.copy_(source)
        return
    # Widened where it is: a copy that also converts would go through memory that is not pinned.
    stand_in.copy_(source.to(torch.float32), non_blocking=True)
    _wait_for_stream(source.device)


def bring_back(tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
    """Fill ``tensor`` with the values of ``stand_in``, rounded to its dtype."""
    target = tensor.detach().view(-1)
    if target.device.type == "cpu":
        if target.data_ptr() != stand_in.data_ptr():
            target.copy_(stand_in)
        return
    target.copy_(stand_in.to(target.device, non_blocking=True))
    _wait_for_stream(target.device)  # the pinned memory is free for the next tensor then


def _serves(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()


def _wait_for_stream(device: torch.device) -> None:
    torch.get_device_module(device).current_stream(device).synchronize()
