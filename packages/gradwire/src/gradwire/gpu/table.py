"""The table of formats with GPU kernels. Codecs of all other formats run on the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from gradwire import _native
from gradwire.errors import MissingPackageError
from gradwire.version import how_to_install

# The contract of a format's kernels.
#
# - Payloads, decoded values, and sums equal the results of ``gradwire._native`` byte for byte, for every
#   chunk, including NaN, infinities, subnormals and -0. The exception is the sum of two NaN, which depends on
#   the host's compiler. Rounding is integer arithmetic, or a float addition that rounds to nearest. Products
#   and sums are not fused. NaN is handled explicitly, because GPU arithmetic returns its own NaN.
# - All work is queued on the current stream, without waiting. Sizes and faults are words in device memory or
#   in pinned memory, which the caller reads after an event.
# - A payload is aligned to 16 bytes, like an allocator's memory.
# - A payload with a nonzero status is not decoded: the decoder reads the status, and changes no output.

Params: TypeAlias = tuple[int, ...]
"""A format's parameters, as for ``gradwire._native``."""
SIZE_NBYTES = 8
"""The number of bytes in which a payload's size is stored, as an int64."""
STATUS_NBYTES = 4
"""The number of bytes in which a payload's status is stored, as an int32."""


class Format(ABC):
    """The GPU kernels of a format of ``gradwire._native``."""

    is_fixed: ClassVar[bool] = True
    """Whether all payloads of n values have the size ``max_nbytes``."""

    faults: ClassVar[tuple[str, ...]] = ()
    """The error messages for status 1, 2, ... Of several errors, the highest status is reported."""

    def max_nbytes(self, name: str, n: int, params: Params) -> int:
        """Return the size of the largest payload of n values in the format ``name``, in bytes."""
        return _native.max_nbytes(name, n, params)

    @abstractmethod
    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        """Queue the encoding of ``x`` to ``out``, which is large enough; set ``size`` unless ``is_fixed``."""

    @abstractmethod
    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        """Queue the validation and decoding of a payload, of valid size if ``is_fixed``.

        The kernels set ``status``, which is 0, if the payload is malformed. Otherwise, they decode it to
        ``out``, or with ``add`` add it to ``out``.
        """


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
"""The module of each format in this folder, and the name of the module's ``Format`` object."""


@cache
def format_of(name: str, otherwise: str = "encode on the host with codec.encode(x.cpu())") -> Format:
    """Return the kernels of a format in PLACES.

    Without Triton, raises ``MissingPackageError``, whose message offers ``otherwise`` as an alternative.
    """
    module, kernels = PLACES[name]
    found = _of(module, kernels, otherwise)
    assert isinstance(found, Format)
    return found


def delta_kernels() -> tuple[Callable[..., Tensor], tuple[str, ...]]:
    """Return ``deltas.queue_delta`` and ``deltas.FAULTS``. Raises ``MissingPackageError`` without Triton."""
    otherwise = "send weights without deltas, as in HostOffload's static:16"
    return _of("deltas", "queue_delta", otherwise), _of("deltas", "FAULTS", otherwise)


def _of(module: str, attribute: str, otherwise: str) -> Any:
    try:
        return getattr(import_module(f"gradwire.gpu.{module}"), attribute)
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.gpu needs the package triton, which cannot be imported ({error}); "
            f"{how_to_install('gpu')}, or {otherwise}",
            name="triton",
        ) from error
