"""The table of the formats with GPU kernels. Codecs of other formats run on the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

import torch

from gradwire import _native
from gradwire.errors import MissingPackageError
from gradwire.version import how_to_install

# The contract of a format's kernels.
#
# - Payloads, decoded values, and sums equal those of ``gradwire._native`` byte for byte, for every chunk,
#   also with NaN, infinities, subnormals and -0. The exception is the sum of two NaN, which depends on the
#   compiler of the host. Rounding is integer arithmetic, or a float addition that rounds to nearest. No
#   product is fused with a sum. No NaN is left to arithmetic, because GPUs make their own.
# - All work is queued on the current stream, without waiting. Sizes and faults are words in the memory of the
#   device or in pinned memory, which the caller reads after an event.
# - A payload begins at a multiple of 16 bytes, like the memory of an allocator.
# - A payload whose status is not 0 is not decoded: the decoder reads the status, and keeps its output.

Params: TypeAlias = tuple[int, ...]
"""A format's parameters, as ``gradwire._native`` takes them."""
SIZE_NBYTES = 8
"""The bytes of a payload's size, an int64."""
STATUS_NBYTES = 4
"""The bytes of a payload's status, an int32."""


class Format(ABC):
    """A format of ``gradwire._native`` on a GPU."""

    is_fixed: ClassVar[bool] = True
    """Whether the payload of n values always has the capacity's size."""

    faults: ClassVar[tuple[str, ...]] = ()
    """The faults of a payload of status 1, 2, ...; of several faults the highest number wins."""

    def max_nbytes(self, name: str, n: int, params: Params) -> int:
        """Return the size of the largest payload of n values in the format of this name."""
        return _native.max_nbytes(name, n, params)

    @abstractmethod
    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the encoding of ``x`` into ``out``, which has the capacity; write ``size`` unless fixed."""

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:  # noqa: B027
        """Queue the check that raises ``status`` from 0 if a payload of the right size is malformed."""

    @abstractmethod
    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the decoding into ``out``, or the sum with it, if ``status`` is 0."""


PLACES = {
    "bf16": ("cast", "BF16"),
    "bfp": ("bfp", "BFP"),
    "errbound": ("errbound", "ERRBOUND"),
    "fp16": ("cast", "FP16"),
    "fp8": ("fp8", "FP8"),
    "inceptionn": ("inceptionn", "INCEPTIONN"),
    "pack": ("pack", "PACK"),
    "quantize": ("quantize", "QUANTIZE"),
    "terngrad": ("terngrad", "TERNGRAD"),
    "topk": ("topk", "TOPK"),
}
"""The module in this folder and the name of each format's kernels."""


@cache
def format_of(name: str, otherwise: str = "encode on the host: codec.encode(x.cpu())") -> Format:
    """Return the kernels of a format of PLACES.

    Raises ``MissingPackageError`` without Triton; its remedy is ``otherwise``.
    """
    module, kernels = PLACES[name]
    found = _of(module, kernels, otherwise)
    assert isinstance(found, Format)
    return found


def delta_kernels() -> tuple[Callable[..., torch.Tensor], tuple[str, ...]]:
    """Return ``queue_delta`` and the faults of ``deltas``. Raises ``MissingPackageError`` without Triton."""
    otherwise = "send other than deltas there, such as HostOffload's static:16"
    return _of("deltas", "queue_delta", otherwise), _of("deltas", "FAULTS", otherwise)


def _of(module: str, attribute: str, otherwise: str) -> Any:
    try:
        return getattr(import_module(f"gradwire.gpu.{module}"), attribute)
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.gpu needs the package triton, which does not load here ({error}); "
            f"{how_to_install('gpu')}, or {otherwise}",
            name="triton",
        ) from error
