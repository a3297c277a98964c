"""The compiled kernels: formats, instruction-set targets, and the checksum. Tensors in, numbers out.

This is the only module that turns tensors into addresses. Callers must check dtype and layout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from gradwire.deferred import torch
from gradwire.errors import PayloadError, SpecError

try:
    from gradwire._native import _core
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "gradwire's compiled kernels are missing or do not load on this machine; "
        f"build them with `pip install .` or `make setup` in the source tree ({error})"
    ) from error

__all__ = [
    "Packed",
    "Pass",
    "Words",
    "available_targets",
    "crc32c",
    "crc32c_of_bytes",
    "decode",
    "decode_add",
    "delta_apply",
    "delta_encode",
    "delta_max_nbytes",
    "encode",
    "entropy_decode",
    "entropy_encode",
    "entropy_max_nbytes",
    "hash64",
    "largest_exponent",
    "max_nbytes",
    "pack_message",
    "scale",
    "sum_norms",
    "target",
    "threads",
    "use_target",
]


_INFINITE = 0x7F80_0000
"""The bits of infinity; those of NaN are above."""

Pass = _core.Pass
Words = _core.Words


def available_targets() -> list[str]:
    """Return the targets that this machine can run, slowest first; the first is ``scalar``."""
    return list(_core.available_targets())


def target() -> str:
    """Return the current target: the fastest of this machine, or the one that ``GRADWIRE_TARGET`` names.

    Raises ``SpecError``, like every function here that runs a kernel, if the machine can't run that target.
    """
    _obey_environment()
    return _core.target()


@contextmanager
def use_target(name: str) -> Iterator[None]:
    """Use a target within a ``with`` block, for the whole process. Raises ``SpecError``."""
    before = target()
    _select(name, "use_target")
    try:
        yield
    finally:
        _core.set_target(before)


def threads() -> int:
    """Return the number of threads for a large tensor: ``GRADWIRE_THREADS``, else PyTorch's own setting."""
    asked = os.environ.get("GRADWIRE_THREADS")
    return torch.get_num_threads() if asked is None else _count(asked)


@cache
def _count(asked: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,3}", asked, re.ASCII):
        raise SpecError(f"GRADWIRE_THREADS must be a whole number from 1 to 9999, but is {asked!r}")
    return int(asked)


def max_nbytes(name: str, n: int, params: tuple[int, ...]) -> int:
    """Return the largest payload of ``n`` elements in the format ``name``."""
    return _core.max_nbytes(name, n, *_three(params))


def encode(name: str, x: torch.Tensor, out: torch.Tensor, params: tuple[int, ...]) -> int:
    """Encode ``x`` into ``out``, which holds ``max_nbytes``; return the bytes used."""
    _obey_environment()
    return _core.encode(name, x.data_ptr(), x.numel(), out.data_ptr(), *_three(params), threads())


def decode(name: str, payload: torch.Tensor, out: torch.Tensor, params: tuple[int, ...]) -> None:
    """Decode into ``out``. Raises ``PayloadError``, before anything is written."""
    _run(name, payload, out, params, add=False)


def decode_add(name: str, payload: torch.Tensor, acc: torch.Tensor, params: tuple[int, ...]) -> None:
    """Decode and add to ``acc``. Raises ``PayloadError``, before anything is written."""
    _run(name, payload, acc, params, add=True)


def largest_exponent(x: torch.Tensor) -> int | None:
    """Return e such that the largest magnitude of ``x`` is at least 2^e and below 2^(e + 1).

    Return None for a chunk of zeros, an empty one, and one with a value that is not finite. Subnormal values
    count as 2^-127.
    """
    bits = _core.largest_bits(x.data_ptr(), x.numel(), threads())
    return None if bits == 0 or bits >= _INFINITE else (bits >> 23) - 127


def scale(x: torch.Tensor, out: torch.Tensor, exponent: int, *, add: bool = False) -> None:
    """Write ``x * 2^exponent`` (-126 to 127) to ``out``, which may be ``x``, or ``add`` it to ``out``."""
    _core.scale(x.data_ptr(), out.data_ptr(), x.numel(), exponent, add, threads())


def sum_norms(
    how: Pass,
    x: torch.Tensor,
    y: torch.Tensor,
    start: int = 0,
    borders: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
) -> float:
    """Pass once over a segment (1-D float32, ``y`` as long as ``x``) and sum squares in float64, by ranges.

    ============ ======================== =================
    how          does                     sums the squares
    ============ ======================== =================
    ``LOOK``     nothing                  of ``x``
    ``ADD``      ``x = x + y``            of the old ``x``
    ``SUBTRACT`` ``y = x - y``            of the new ``y``
    ``ADOPT``    ``x, y = y, x - y``      of the new ``y``
    ============ ======================== =================

    ``x`` begins at element ``start`` of a bucket, whose ranges lie between ``borders`` (int64, not
    decreasing, covering the segment). The sum of each range is added to its place in ``sums`` (float64).
    Returns the sum over the segment, which is finite if and only if all those values are. It is the same on
    every target and for every number of threads.
    """
    _obey_environment()
    ranges, at, into = 0, 0, 0
    if borders is not None and sums is not None:
        ranges, at, into = sums.numel(), borders.data_ptr(), sums.data_ptr()
    return _core.sum_norms(how, x.data_ptr(), y.data_ptr(), x.numel(), start, at, ranges, into, threads())


class Packed(NamedTuple):
    """A tensor of a message.

    Attributes
    ----------
    x
        Contiguous float32.
    offset, bits
        Where the format ``pack`` with so many bits begins in the message, which has room for it.
    summed
        Whether its sum of squares is wanted.
    """

    x: torch.Tensor
    offset: int
    bits: int
    summed: bool


def pack_message(tensors: Sequence[Packed], out: torch.Tensor) -> list[float]:
    """Pack tensors into the message ``out``, and return their sums of squares, 0 where none is wanted.

    A sum is the one that ``sum_norms`` returns; it costs no second way through memory.
    """
    _obey_environment()
    at = out.data_ptr()
    rows = [(each.x.data_ptr(), each.x.numel(), at + each.offset, each.bits, each.summed) for each in tensors]
    return _core.pack_message(rows, threads())


def entropy_max_nbytes(n: int) -> int:
    """Return the largest payload of ``n`` symbols."""
    return _core.entropy_max_nbytes(n)


def entropy_encode(symbols: torch.Tensor, out: torch.Tensor) -> int:
    """Encode bytes into ``out``, which holds ``entropy_max_nbytes``; return the bytes used."""
    _obey_environment()
    return _core.entropy_encode(symbols.data_ptr(), symbols.numel(), out.data_ptr(), threads())


def entropy_decode(payload: torch.Tensor, out: torch.Tensor) -> str | None:
    """Decode into ``out``; return what is wrong, if anything (``out`` then has no meaning)."""
    _obey_environment()
    return _core.entropy_decode(payload.data_ptr(), payload.numel(), out.data_ptr(), out.numel(), threads())


def delta_max_nbytes(words: _core.Words, n: int) -> int:
    """Return the largest body of a delta of ``n`` weights."""
    return _core.delta_max_nbytes(words, n)


def delta_encode(
    words: _core.Words, masters: torch.Tensor, base: torch.Tensor, out: torch.Tensor, *, code: bool
) -> int:
    """Encode how ``base`` becomes the masters' words, and change it so; return the bytes of ``out`` used."""
    _obey_environment()
    return _core.delta_encode(
        words, masters.data_ptr(), base.data_ptr(), base.numel(), out.data_ptr(), code, threads()
    )


def delta_apply(words: _core.Words, body: torch.Tensor, base: torch.Tensor) -> str | None:
    """Change ``base`` in place; return what is wrong, if anything (``base`` is then as before)."""
    _obey_environment()
    return _core.delta_apply(words, body.data_ptr(), body.numel(), base.data_ptr(), base.numel(), threads())


def hash64(data: torch.Tensor) -> int:
    """Return a 64-bit hash of a contiguous tensor's bytes (native/kernels/hash64.h)."""
    _obey_environment()
    return _core.hash64(data.data_ptr(), data.numel() * data.element_size(), threads())


def crc32c(data: torch.Tensor, seed: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of a 1-D uint8 tensor, continuing from ``seed``."""
    _obey_environment()
    return _core.crc32c(data.data_ptr(), data.numel(), seed)


def crc32c_of_bytes(data: bytes) -> int:
    """Return the CRC32C of a few bytes."""
    _obey_environment()
    return _core.crc32c_of_bytes(data)


def _run(name: str, payload: torch.Tensor, out: torch.Tensor, params: tuple[int, ...], *, add: bool) -> None:
    _obey_environment()
    reason = _core.decode(
        name,
        payload.data_ptr(),
        payload.numel(),
        out.data_ptr(),
        out.numel(),
        *_three(params),
        add,
        threads(),
    )
    if reason is not None:
        raise PayloadError(
            f"a payload of {payload.numel()} bytes is no {name} encoding of {out.numel()} elements: "
            f"{reason}; do all ranks use the same codec?"
        )


def _three(params: tuple[int, ...]) -> tuple[int, int, int]:
    a, b, c = (*params, 0, 0, 0)[:3]
    return a, b, c


def _select(name: str, source: str) -> None:
    if not _core.set_target(name):
        raise SpecError(
            f"{source} asks for the target {name!r}, but this machine runs {', '.join(available_targets())}"
        )


@cache
def _obey_environment() -> None:
    """Select the target that ``GRADWIRE_TARGET`` names, once; not at import, to avoid a traceback."""
    forced = os.environ.get("GRADWIRE_TARGET")
    if forced:
        _select(forced, "GRADWIRE_TARGET")
