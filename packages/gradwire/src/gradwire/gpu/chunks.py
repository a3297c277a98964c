"""Encoding and decoding of chunks on a GPU. Functions queue work without waiting, unless documented."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gradwire.errors import PayloadError, TensorError
from gradwire.gpu.table import PLACES, Format, Params, format_of

ALIGNMENT = 16
"""The alignment of a payload's memory in bytes."""


class Named(Protocol):
    """A codec. If it has a compiled format, its ``compiled`` is the format's name and parameters."""

    name: ClassVar[str]


@dataclass(frozen=True)
class Encoded:
    """A payload whose encoding is queued on the current stream."""

    buffer: Tensor
    """Memory for the largest payload of the chunk; the payload is at its start."""

    size: int | Tensor
    """The payload's size in bytes: a number if the format's size is fixed, else an int64 on the device."""

    def payload(self) -> Tensor:
        """Return the payload, after a wait for ``size`` if it is a tensor."""
        return self.buffer[: int(self.size)]


@dataclass(frozen=True)
class Decoding:
    """The queued validation and decoding of a payload, whose status says whether the payload was valid."""

    status: Tensor
    """An int32 on the device or in pinned memory: 0 if the payload is well-formed."""

    faults: tuple[str, ...]
    """The error messages for status 1, 2, and so on."""

    described: str
    """The beginning of an error message, which describes the payload."""

    def check(self) -> None:
        """Wait for the status, and raise ``PayloadError`` if the payload was malformed and not decoded."""
        status = int(self.status)
        if status:
            raise _malformed(self.described, self.faults[status - 1])


def encode(codec: Named, x: Tensor, out: Tensor | None = None, size: Tensor | None = None) -> Encoded:
    """Queue the encoding of a chunk on a GPU. Raises ``TensorError`` and ``MissingPackageError``.

    ``out`` (uint8, with room for the largest payload) and ``size`` (one int64, written if the format has no
    fixed size) may be on the GPU or in pinned memory.
    """
    found, name, params = _kernels(codec)
    _check(x, "x", torch.float32)
    capacity = found.max_nbytes(name, x.numel(), params)
    if out is None:
        out = torch.empty(capacity, dtype=torch.uint8, device=x.device)
    _check(out, "out", torch.uint8, x)
    if out.numel() < capacity:
        raise TensorError(
            f"{codec}: expected at least {capacity} bytes in out for {x.numel()} values, got "
            f"{out.numel()}; allocate codec.max_nbytes(n) bytes"
        )
    if size is None:
        size = torch.empty(1, dtype=torch.int64, device=x.device)
    _check(size, "size", torch.int64, x)
    if not size.numel():
        raise TensorError("size: expected one int64, got none; allocate torch.empty(1, dtype=torch.int64)")
    with _on(x):
        found.encode(x.detach(), out[:capacity], params, size)
    return Encoded(out[:capacity], capacity if found.is_fixed else size)


def decode(codec: Named, payload: Tensor, out: Tensor) -> Decoding:
    """Queue the decoding of a payload to ``out``.

    Raises the errors of ``encode``, and ``PayloadError`` for a wrong length.
    """
    return _decode(codec, payload, out, add=False)


def decode_add(codec: Named, payload: Tensor, acc: Tensor) -> Decoding:
    """Queue the addition of the decoded chunk to ``acc``. Raises the errors of ``decode``."""
    return _decode(codec, payload, acc, add=True)


def _decode(codec: Named, payload: Tensor, out: Tensor, *, add: bool) -> Decoding:
    found, name, params = _kernels(codec)
    _check(out, "acc" if add else "out", torch.float32)
    _check(payload, "payload", torch.uint8, out)
    described = describe(found, name, payload, out.numel(), params, str(codec))
    with _on(out):
        status = queue_decode(found, payload, out.detach(), params, add=add)
    return Decoding(status, found.faults, described)


def describe(found: Format, name: str, payload: Tensor, n: int, params: Params, codec: str) -> str:
    """Return the beginning of an error message. Raises ``PayloadError`` for a payload of a wrong length."""
    nbytes = payload.numel()
    described = f"expected {n} elements encoded with {codec}, got an invalid payload of {nbytes} bytes"
    if found.is_fixed and nbytes != found.max_nbytes(name, n, params):
        raise _malformed(described, "its length does not match")
    return described


def queue_decode(found: Format, payload: Tensor, out: Tensor, params: Params, *, add: bool) -> Tensor:
    """Queue the validation and decoding of a payload of valid length, and return its status as a tensor."""
    status = torch.zeros(1, dtype=torch.int32, device=out.device)
    found.decode(payload, out, params, status, add=add)
    return status


def _kernels(codec: Named) -> tuple[Format, str, Params]:
    """Return a codec's kernels, format, and parameters. Raises ``TensorError`` without kernels."""
    name, params = getattr(codec, "compiled", (codec.name, ()))
    if name not in PLACES:
        raise TensorError(
            f"{codec.name} has no GPU kernels; encode on the host with codec.encode(x.cpu()), and decode "
            "with codec.decode(payload.cpu(), out)"
        )
    return format_of(name), name, params


def _check(x: Tensor, what: str, dtype: torch.dtype, chunk: Tensor | None = None) -> None:
    """Raise ``TensorError`` if kernels can't use the tensor ``x``; ``what`` names it in the error.

    A chunk is on a GPU. Other tensors are on the GPU of their ``chunk``, or in pinned memory.
    """
    if x.dtype is not dtype or x.dim() != 1 or not x.is_contiguous() or x.is_neg():
        raise TensorError(
            f"{what}: expected a 1-D contiguous {dtype} tensor, got {x.dtype} of shape {tuple(x.shape)} and "
            f"strides {x.stride()}; pass {what}.to({dtype}).flatten()"
        )
    is_there = x.is_cuda if chunk is None else x.device == chunk.device or x.is_pinned()
    if not (is_there or (x.is_cpu and _is_interpreted())):
        place = "a GPU" if chunk is None else f"{chunk.device} or in pinned memory"
        raise TensorError(
            f"{what}: expected a tensor on {place}, got one on {x.device}; move it there, or call "
            "codec.encode or codec.decode for a CPU tensor"
        )
    if dtype is torch.uint8 and x.data_ptr() % ALIGNMENT:
        raise TensorError(
            f"{what}: expected memory aligned to {ALIGNMENT} bytes, got an offset of "
            f"{x.data_ptr() % ALIGNMENT}; pass {what}.clone()"
        )


def _malformed(described: str, reason: str) -> PayloadError:
    return PayloadError(f"{described}: {reason}; use the same codec on all ranks")


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _on(x: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
