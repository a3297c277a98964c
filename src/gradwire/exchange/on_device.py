"""Buckets that are on a device, and encoded and decoded there: only payloads cross its bus.

The kernels of a codec give the host's bits, and so does what is done to sums here. Whatever has no kernels is
done on the host, to a copy: what a codec without kernels encodes, what residuals and norms need, and the
transport's own all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import torch

from gradwire.codecs import Codec
from gradwire.codecs.native import NativeCodec
from gradwire.devices import CPU, device_of
from gradwire.exchange.feedback import Losses
from gradwire.gpu.table import format_of

_OTHERWISE = "encode on the host: Plan(encode_on='host')"


class DeviceLosses(Losses):
    """Nobody keeps what is lost of a bucket on a device.

    The host waits for an event with each payload, and for one at the end. Raises ``MissingPackageError``
    without Triton.
    """

    ON_DEVICE: ClassVar[bool] = True

    def __init__(self, codec: Codec, tensor: torch.Tensor) -> None:
        assert isinstance(codec, NativeCodec)
        format_of(codec.compiled[0], _OTHERWISE)
        super().__init__(codec)
        self._device = device_of(tensor)
        with torch.inference_mode(mode=False):
            self._nonfinite = self._device.pinned(1).view(torch.int32).zero_()

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:  # noqa: ARG002
        """Queue the division, and the look at the values."""
        used = [elements, self._nonfinite]
        self._device.launch(lambda: _queue_finish()(elements, ranks, self._nonfinite), used, used)

    def commit(self) -> None:
        """Wait until all of the bucket is there."""
        self._device.event().wait()
        self.finite = not int(self._nonfinite)


def divide(tensor: torch.Tensor, ranks: int) -> None:
    """Divide float32 in place, where it is, on the current stream; the quotients are the same everywhere."""
    device = device_of(tensor)
    if device is CPU:
        tensor.div_(ranks)
    else:
        word = device.zeros(1).view(torch.int32)
        device.launch(lambda: _queue_finish()(tensor, ranks, word), [tensor, word], [tensor, word])


@cache
def _queue_finish() -> Callable[[torch.Tensor, int, torch.Tensor], None]:
    found: Any = import_module("gradwire.gpu.finish")  # it imports Triton
    queue: Callable[[torch.Tensor, int, torch.Tensor], None] = found.queue_finish
    return queue
