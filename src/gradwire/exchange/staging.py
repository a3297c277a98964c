"""Host memory in float32 that stands in for tensors which no exchange takes as they are.

An exchange takes contiguous float32 on the CPU. A tensor of another layout is gathered in the order of its
indices and scattered back. One of half the precision is widened, which is exact, and rounded on its way back.
One on an accelerator is copied into pinned memory and back, on the stream that is current when the copy is
asked for; the host waits for each copy.
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
    # Resolved, for copying halves to float32 forgets to negate what torch negates only when it is read.
    source, memory = tensor.detach().resolve_neg(), stand_in.view(tensor.shape)
    if source.device.type == "cpu":
        if not _is(memory, source):
            memory.copy_(source)
        return
    # Widened and gathered where it is: a copy that did so on its way would leave the pinned memory.
    memory.copy_(source.to(torch.float32).contiguous(), non_blocking=True)
    _wait_for_stream(source.device)


def bring_back(tensor: torch.Tensor, stand_in: torch.Tensor) -> None:
    """Fill ``tensor`` with the values of ``stand_in``, rounded to its dtype."""
    with torch.inference_mode():  # outside, nobody may write a tensor that was made in this mode
        target, memory = tensor.detach(), stand_in.view(tensor.shape)
        if target.is_neg():
            memory = memory.to(target.dtype)  # as in fetch
        if target.device.type == "cpu":
            if not _is(memory, target):
                target.copy_(memory)
            return
        target.copy_(memory.to(target.device, non_blocking=True))
        _wait_for_stream(target.device)  # the pinned memory is free for the next tensor then


def _serves(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def _is(memory: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Tell whether ``memory`` is what ``tensor`` itself lies in."""
    return _serves(tensor) and memory.data_ptr() == tensor.data_ptr()


def _wait_for_stream(device: torch.device) -> None:
    torch.get_device_module(device).current_stream(device).synchronize()
