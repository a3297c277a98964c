"""Codecs that are implemented by compiled kernels."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from gradwire import _native
from gradwire.codecs.base import Codec
from gradwire.deferred import torch


class NativeCodec(Codec):
    """A codec that names its compiled format and the format's parameters; the kernels do the rest."""

    _format: ClassVar[str]
    """The name of the format in the native table."""

    @property
    @abstractmethod
    def _params(self) -> tuple[int, ...]:
        """Up to three signed 32-bit numbers; the format's source file defines their meaning."""

    def max_nbytes(self, n: int) -> int:
        """Return the largest payload, in bytes, of any chunk of ``n`` elements."""
        return _native.max_nbytes(self._format, n, self._params)

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        return _native.encode(self._format, x, out, self._params)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        _native.decode(self._format, payload, out, self._params)

    def _decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        _native.decode_add(self._format, payload, acc, self._params)


def as_int32(bits: int) -> int:
    """Return the signed number with these low 32 bits, as the kernels take parameters."""
    low = bits & 0xFFFF_FFFF
    return low - (1 << 32) if low >> 31 else low
