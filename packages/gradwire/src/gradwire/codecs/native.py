"""Codecs implemented by compiled kernels."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from importlib import import_module
from typing import ClassVar, Protocol, TypeAlias, TypeGuard, cast

from gradwire import _native
from gradwire.codecs.base import Codec
from gradwire.deferred import torch
from gradwire.devices import owner_of

Params: TypeAlias = tuple[int, ...]
"""A format's parameters: up to three signed 32-bit numbers, defined in the format's C++ file."""


class Kernels(Protocol):
    """Compiled kernels for one type of device. ``gradwire._native`` documents the kernels."""

    def encode(self, name: str, x: torch.Tensor, out: torch.Tensor, params: Params) -> int:
        """Encode ``x`` into ``out`` and return the payload's size in bytes."""

    def decode(self, name: str, payload: torch.Tensor, out: torch.Tensor, params: Params) -> None:
        """Decode ``payload`` into ``out``."""

    def decode_add(self, name: str, payload: torch.Tensor, acc: torch.Tensor, params: Params) -> None:
        """Decode ``payload`` and add the values to ``acc``."""


def kernels_beside(x: torch.Tensor) -> Kernels | None:
    """Return the kernels for a chunk's accelerator, or None for a chunk on the CPU."""
    return None if x.is_cpu and owner_of(x) is None else _on_accelerators()


@cache
def _on_accelerators() -> Kernels:
    return cast("Kernels", import_module("gradwire.gpu.transfers"))


class NativeCodec(Codec):
    """A codec whose compiled kernels encode and decode."""

    ON_CUDA = True
    _format: ClassVar[str]
    """The name of the format in the native table."""

    @property
    @abstractmethod
    def _params(self) -> Params:
        """The format's parameters."""

    @property
    def compiled(self) -> tuple[str, Params]:
        """The format's name and parameters, for the GPU kernels (``gradwire.gpu``)."""
        return self._format, self._params

    @property
    def is_offloadable(self) -> bool:
        """Whether a NIC may apply the codec to any piece of a stream.

        A NIC requires that values are encoded independently, and that encoding a decoded value adds no error.
        """
        return False

    def max_nbytes(self, n: int) -> int:
        """Return the size of the largest payload of any chunk of ``n`` elements, in bytes."""
        return _native.max_nbytes(self._format, n, self._params)

    def _kernels(self, x: torch.Tensor) -> Kernels:
        return (kernels_beside(x) if self.ON_CUDA else None) or _native

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        return self._kernels(x).encode(self._format, x, out, self._params)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        self._kernels(out).decode(self._format, payload, out, self._params)

    def _decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        self._kernels(acc).decode_add(self._format, payload, acc, self._params)

    def _decode_finished(self, payload: torch.Tensor, out: torch.Tensor, divisor: int) -> bool:
        if not is_compiled(self):
            return super()._decode_finished(payload, out, divisor)
        return _native.decode_finished(self._format, payload, out, self._params, divisor)


def is_compiled(codec: Codec) -> TypeGuard[NativeCodec]:
    """Return whether gradwire's compiled kernels do all of a codec's work.

    A subclass of ``NativeCodec`` in another package may encode in Python.
    """
    return isinstance(codec, NativeCodec) and type(codec).__module__.startswith("gradwire.codecs.")


def as_int32(bits: int) -> int:
    """Return the low 32 bits of ``bits`` as a signed number, the type of kernel parameters."""
    low = bits & 0xFFFF_FFFF
    return low - (1 << 32) if low >> 31 else low
