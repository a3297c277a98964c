"""The contract of a format's kernels.

- Payloads are those of ``gradwire._native``, byte for byte, for every chunk, with NaN, infinities, subnormals
  and -0. So are decoded values and sums, except that of two NaN, which depends on the host's compiler.
  Rounding is integer arithmetic, or a float addition that rounds to nearest; no product is fused with a sum;
  no NaN is left to arithmetic, because GPUs make their own.
- Everything is queued on the current stream, and nothing waits for it. So sizes and faults are words in
  memory, the device's or pinned, which the caller reads when an event says that they are there.
- A payload begins at a multiple of 16 bytes, as memory of an allocator does.
- A payload whose status is not 0 is not decoded: the decoder reads the status, and leaves its output alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import torch

from gradwire import _native

Params: TypeAlias = tuple[int, ...]
"""A format's parameters, as ``gradwire._native`` takes them."""
SIZE_NBYTES = 8
"""What the word of a payload's size has."""
STATUS_NBYTES = 4
"""What the word of its status has."""


class Format(ABC):
    """A format of ``gradwire._native`` on a GPU."""

    is_fixed: ClassVar[bool] = True
    """Whether the payload of n values always has the capacity's size."""

    faults: ClassVar[tuple[str, ...]] = ()
    """What is wrong with a payload of status 1, 2, ...; of several faults the highest number wins."""

    def max_nbytes(self, name: str, n: int, params: Params) -> int:
        """Return the largest payload of n values in the format of this name."""
        return _native.max_nbytes(name, n, params)

    @abstractmethod
    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the encoding of ``x`` into ``out``, which has the capacity; write ``size`` unless fixed."""

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:  # noqa: B027
        """Queue what raises ``status`` from 0 if the payload is malformed; fixed sizes are checked before."""

    @abstractmethod
    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the decoding into ``out``, or the sum with it; nothing where ``status`` is not 0."""
