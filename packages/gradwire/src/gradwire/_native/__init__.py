"""The compiled kernels, called with tensors: formats, instruction-set targets, sums, and checksums.

Only this package converts tensors to addresses. Callers must check each tensor's dtype and layout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from gradwire._native.tensors import DeltaBody, DeltaSource, Packed
from gradwire.deferred import torch
from gradwire.errors import PayloadError, SpecError

try:
    from gradwire._native import _core
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        f"gradwire's compiled kernels are missing or do not load on this machine ({error}); build them "
        "with `pip install ./packages/gradwire` or `make setup` in the source tree"
    ) from error

_INFINITE = 0x7F80_0000
"""The bit pattern of infinity in float32; the patterns of NaNs are larger."""

Pass = _core.Pass
replay = _core.replay
Words = _core.Words


def available_targets() -> list[str]:
    """Return the instruction-set targets that this machine can run: first ``scalar``, last the fastest."""
    return list(_core.available_targets())


def target() -> str:
    """Return the current target: this machine's fastest target, or the target in ``GRADWIRE_TARGET``.

    Raises ``SpecError`` if this machine can't run the target; so does every function here that runs a kernel.
    """
    _obey_environment()
    return _core.target()


@contextmanager
def use_target(name: str) -> Iterator[None]:
    """Use a target in the whole process in a ``with`` block. Raises ``SpecError`` if it can't run here."""
    before = target()
    _select(name, "use_target")
    try:
        yield
    finally:
        _core.set_target(before)


def threads() -> int:
    """Return the number of threads of kernels: ``GRADWIRE_THREADS``, or else PyTorch's number."""
    text = os.environ.get("GRADWIRE_THREADS")
    return torch.get_num_threads() if text is None else _count(text)


@cache
def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d{0,3}", text, re.ASCII):
        raise SpecError(
            f"GRADWIRE_THREADS: expected a whole number from 1 to 9999, got {text!r}; unset it to use "
            "PyTorch's number of threads"
        )
    return int(text)


def max_nbytes(name: str, n: int, params: tuple[int, ...]) -> int:
    """Return the size in bytes of the largest payload of ``n`` elements in the format ``name``."""
    return _core.max_nbytes(name, n, *three(params))


def encode(name: str, x: torch.Tensor, out: torch.Tensor, params: tuple[int, ...]) -> int:
    """Encode ``x`` into ``out``, which has room for ``max_nbytes``, and return the payload's size."""
    _obey_environment()
    return _core.encode(name, x.data_ptr(), x.numel(), out.data_ptr(), *three(params), threads())


def decode(
    name: str, payload: torch.Tensor, out: torch.Tensor, params: tuple[int, ...], *, add: bool = False
) -> None:
    """Decode ``payload`` into ``out``, or with ``add`` add it.

    Raises ``PayloadError`` before anything is written.
    """
    _obey_environment()
    reason = _core.decode(name, *_sizes(payload, out), *three(params), add, threads())
    if reason is not None:
        raise _refusal(name, payload, out.numel(), reason)


def decode_add(name: str, payload: torch.Tensor, acc: torch.Tensor, params: tuple[int, ...]) -> None:
    """Add the decoded ``payload`` to ``acc``. Raises ``PayloadError`` before anything is written."""
    decode(name, payload, acc, params, add=True)


def largest_exponent(x: torch.Tensor) -> int | None:
    """Return the exponent e of the largest magnitude in ``x``, which is at least 2^e and below 2^(e + 1).

    Return None if the chunk is empty, has only zeros, or has a non-finite value. Subnormal values are treated
    as 2^-127.
    """
    bits = _core.largest_bits(x.data_ptr(), x.numel(), threads())
    return None if bits == 0 or bits >= _INFINITE else (bits >> 23) - 127


def scale(x: torch.Tensor, out: torch.Tensor, exponent: int, *, add: bool = False) -> None:
    """Scale ``x`` by ``2^exponent``, and write the result to ``out`` or, with ``add``, add it to ``out``.

    The exponent is from -126 to 127, and ``out`` may be ``x``.
    """
    _core.scale(x.data_ptr(), out.data_ptr(), x.numel(), exponent, add, threads())


def sum_norms(
    how: Pass,
    x: torch.Tensor,
    y: torch.Tensor,
    start: int = 0,
    borders: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
) -> float:
    """Update ``x`` and ``y``, and sum squares per range in float64, in one pass over memory.

    ============ ======================== =================
    how          does                     sums the squares
    ============ ======================== =================
    ``LOOK``     nothing                  of ``x``
    ``ADD``      ``x = x + y``            of the old ``x``
    ``SUBTRACT`` ``y = x - y``            of the new ``y``
    ``ADOPT``    ``x, y = y, x - y``      of the new ``y``
    ============ ======================== =================

    ``x`` and ``y`` are 1-D float32 of equal length. ``x`` begins at element ``start`` of a bucket, whose
    ranges are separated by ``borders`` (int64, in ascending order, covering the segment). Each range's sum is
    added to its entry in ``sums`` (float64). Returns the sum over all ranges, which is finite if and only if
    all summed values are finite. All sums are the same for every target and number of threads.
    """
    _obey_environment()
    ranges, at, into = 0, 0, 0
    if borders is not None and sums is not None:
        ranges, at, into = sums.numel(), borders.data_ptr(), sums.data_ptr()
    return _core.sum_norms(how, x.data_ptr(), y.data_ptr(), x.numel(), start, at, ranges, into, threads())


def has_ranges(name: str) -> bool:
    """Return whether ranges of a payload in format ``name`` can be decoded alone, as ``lose`` requires."""
    return _core.has_ranges(name)


def lose(
    name: str,
    payload: torch.Tensor,
    params: tuple[int, ...],
    x: torch.Tensor,
    lost: torch.Tensor | None,
    start: int,
    borders: torch.Tensor,
    sums: torch.Tensor,
    *,
    divisor: int = 0,
    compares: bool = False,
) -> tuple[float, bool]:
    """Write the encoding error of ``payload``, encoded from ``x``, to ``lost``, in one pass over memory.

    With a ``divisor`` above 0, ``x`` becomes the decoded values divided by ``divisor``. Squares are summed by
    ranges as in ``sum_norms``. The first row of ``sums`` gets the squared error. With ``compares``, the
    second and third rows get the squares of the old ``x`` and of the decoded values. Returns two results: the
    squared error of ``x``, which is finite if and only if every value's error is finite; and whether the new
    ``x``, if there is one, is finite. The sums are the same for every target and number of threads. Raises
    ``PayloadError``.
    """
    _obey_environment()
    reason, total, finite = _core.lose(
        name,
        payload.data_ptr(),
        payload.numel(),
        x.data_ptr(),
        0 if lost is None else lost.data_ptr(),
        x.numel(),
        *three(params),
        divisor > 0,
        float(max(divisor, 1)),
        start,
        borders.data_ptr(),
        borders.numel() - 1,
        sums.data_ptr(),
        compares,
        threads(),
    )
    if reason is not None:
        raise _refusal(name, payload, x.numel(), reason)
    return total, finite


def decode_finished(
    name: str, payload: torch.Tensor, out: torch.Tensor, params: tuple[int, ...], divisor: int
) -> bool:
    """Decode into ``out``, divide, and return whether all quotients are finite. Raises ``PayloadError``."""
    _obey_environment()
    sizes = _sizes(payload, out)
    reason, finite = _core.decode_finished(name, *sizes, *three(params), float(divisor), threads())
    if reason is not None:
        raise _refusal(name, payload, out.numel(), reason)
    return finite


def finish(x: torch.Tensor, divisor: int) -> bool:
    """Divide ``x`` by ``divisor`` in place, unless it is 1, and return whether all quotients are finite."""
    _obey_environment()
    return _core.finish(x.data_ptr(), x.numel(), float(divisor), threads())


def pack_message(tensors: Sequence[Packed], out: torch.Tensor) -> list[float]:
    """Pack tensors into the message ``out``, and return each tensor's sum of squares if ``summed``, else 0.

    The sums are equal to those of ``sum_norms``, without a second pass over memory.
    """
    _obey_environment()
    at = out.data_ptr()
    rows = [(each.x.data_ptr(), each.x.numel(), at + each.offset, each.bits, each.summed) for each in tensors]
    return _core.pack_message(rows, threads())


def entropy_max_nbytes(n: int) -> int:
    """Return the largest size in bytes of ``n`` symbols encoded by ``entropy_encode``."""
    return _core.entropy_max_nbytes(n)


def entropy_encode(symbols: torch.Tensor, out: torch.Tensor) -> int:
    """Encode ``symbols`` into ``out``, of size ``entropy_max_nbytes``, and return the payload's size."""
    _obey_environment()
    return _core.entropy_encode(symbols.data_ptr(), symbols.numel(), out.data_ptr(), threads())


def entropy_decode(payload: torch.Tensor, out: torch.Tensor) -> str | None:
    """Decode symbols into ``out``, and return None, or the fault, after which ``out`` is undefined."""
    _obey_environment()
    return _core.entropy_decode(*_sizes(payload, out), threads())


def delta_max_nbytes(words: _core.Words, n: int) -> int:
    """Return the largest size in bytes of a delta's body for ``n`` weights."""
    return _core.delta_max_nbytes(words, n)


def delta_encode(
    words: _core.Words, sources: Sequence[DeltaSource], out: torch.Tensor, *, align: int = 1, code: bool
) -> list[tuple[int, int]]:
    """Encode deltas into the message ``out``, and return their starts (multiples of ``align``) and ends."""
    _obey_environment()
    rows = [
        (masters.data_ptr(), 0 if base is None else base.data_ptr(), masters.numel(), len(front), hashed)
        for masters, base, front, hashed in sources
    ]
    fronts = b"".join([each.front for each in sources])
    return _core.delta_encode(words, rows, fronts, out.data_ptr(), align, code, threads())


def delta_apply(words: _core.Words, bodies: Sequence[DeltaBody]) -> tuple[int, str | None]:
    """Apply the bodies of deltas in order, up to the first invalid body.

    Return the number of applied bodies, and the fault of the invalid body, or None. The words that an invalid
    body would change stay unchanged.
    """
    _obey_environment()
    rows = [
        (address, nbytes, held.data_ptr(), held.numel(), full, plain)
        for address, nbytes, held, full, plain in bodies
    ]
    return _core.delta_apply(words, rows, threads())


def hash64(data: torch.Tensor) -> int:
    """Return a 64-bit hash of a contiguous tensor's bytes (native/kernels/hash64.h)."""
    _obey_environment()
    return _core.hash64(data.data_ptr(), data.numel() * data.element_size(), threads())


def crc32c(data: torch.Tensor, seed: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of a 1-D uint8 tensor, continuing from the checksum ``seed``."""
    _obey_environment()
    return _core.crc32c(data.data_ptr(), data.numel(), seed)


def crc32c_of_bytes(data: bytes) -> int:
    """Return the CRC32C of a short byte string."""
    _obey_environment()
    return _core.crc32c_of_bytes(data)


def _sizes(payload: torch.Tensor, out: torch.Tensor) -> tuple[int, int, int, int]:
    return payload.data_ptr(), payload.numel(), out.data_ptr(), out.numel()


def _refusal(name: str, payload: torch.Tensor, n: int, reason: str) -> PayloadError:
    return PayloadError(
        f"expected {n} elements encoded with {name}, got an invalid payload of {payload.numel()} bytes: "
        f"{reason}; use the same codec on all ranks"
    )


def three(params: tuple[int, ...]) -> tuple[int, int, int]:
    """Return a format's parameters, padded to three numbers."""
    a, b, c = (*params, 0, 0, 0)[:3]
    return a, b, c


def _select(name: str, source: str) -> None:
    if not _core.set_target(name):
        raise SpecError(
            f"{source}: expected a target of this machine ({', '.join(available_targets())}), got {name!r}; "
            "choose one of these"
        )


@cache
def _obey_environment() -> None:
    """Select the target in ``GRADWIRE_TARGET`` on first use; at import, an error would print a traceback."""
    forced = os.environ.get("GRADWIRE_TARGET")
    if forced:
        _select(forced, "GRADWIRE_TARGET")
