"""Encoding and decoding of chunks on an accelerator with payloads on the host: only payloads cross the bus.

Codecs use these functions for chunks on an accelerator. A payload is encoded in device memory, and then
copied to pinned memory together with its size and status. The host waits for an event, and never synchronises
a whole stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gradwire.devices import device_of
from gradwire.gpu.chunks import ALIGNMENT, Decoding, describe, queue_decode
from gradwire.gpu.table import SIZE_NBYTES, STATUS_NBYTES, Params, format_of


def encode(name: str, x: Tensor, out: Tensor, params: Params) -> int:
    """Encode ``x`` on its device to ``out`` on the host, and return the payload's size in bytes."""
    return encode_and_keep(name, x, out, params).numel()


def encode_and_keep(name: str, x: Tensor, out: Tensor, params: Params) -> Tensor:
    """Encode ``x`` on its device to ``out`` on the host, and return the payload on the device."""
    found, device = format_of(name), device_of(x)
    capacity = found.max_nbytes(name, x.numel(), params)
    # One block for both: torch reuses it only after the copy of the size, which follows the kernels' writes.
    memory = _pinned(x, ALIGNMENT + capacity)
    size, there = memory[:SIZE_NBYTES].view(torch.int64), memory[ALIGNMENT:]

    def queue() -> Tensor:
        here = torch.empty(capacity, dtype=torch.uint8, device=x.device)
        nbytes = torch.empty(1, dtype=torch.int64, device=x.device)
        found.encode(x, here, params, nbytes)
        if found.is_fixed:
            there.copy_(here, non_blocking=True)
        else:
            _queue_carry()(here, there, nbytes)
            size.copy_(nbytes, non_blocking=True)
        return here

    here = device.launch(queue, [x], [there, size])
    device.event().wait()
    nbytes = capacity if found.is_fixed else int(size)
    out[:nbytes] = there[:nbytes]
    return here[:nbytes]


def decode(name: str, payload: Tensor, out: Tensor, params: Params, *, add: bool = False) -> None:
    """Decode a host payload to ``out`` on its device, or with ``add`` add it.

    Raises ``PayloadError``, after which ``out`` is unchanged.
    """
    decoding = begin_decode(name, payload, out, params, add=add)
    device_of(out).event().wait()
    decoding.check()


def decode_add(name: str, payload: Tensor, acc: Tensor, params: Params) -> None:
    """Add a decoded host payload to ``acc`` on its device. Raises ``PayloadError`` with ``acc`` unchanged."""
    decode(name, payload, acc, params, add=True)


def begin_decode(name: str, payload: Tensor, out: Tensor, params: Params, *, add: bool) -> Decoding:
    """Queue the decoding of a host payload to ``out``, or with ``add`` its addition, on the current stream.

    ``payload`` may change after this call. The caller checks the result after an event of the stream. Raises
    ``PayloadError`` for a wrong length.
    """
    found = format_of(name)
    described = describe(found, name, payload, out.numel(), params, name)
    there, fault = _pinned(out, payload.numel()), _pinned(out, STATUS_NBYTES).view(torch.int32)
    there.copy_(payload)

    def queue() -> None:
        here = there.to(out.device, non_blocking=True)  # kernels read the payload more than once
        status = queue_decode(found, here, out, params, add=add)
        fault.copy_(status, non_blocking=True)

    device_of(out).launch(queue, [there, out], [out, fault])
    return Decoding(fault, found.faults, described)


def _pinned(beside: Tensor, nbytes: int) -> Tensor:
    """Return ``nbytes`` of pinned memory for the device of the tensor ``beside``."""
    with torch.inference_mode(mode=False):
        return device_of(beside).pinned(-(-nbytes // 4)).view(torch.uint8)[:nbytes]


@cache
def _queue_carry() -> Callable[[Tensor, Tensor, Tensor], None]:
    found: Any = import_module("gradwire.gpu.feedback")  # a module that imports Triton
    queue: Callable[[Tensor, Tensor, Tensor], None] = found.queue_carry
    return queue
