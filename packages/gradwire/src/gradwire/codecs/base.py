"""The base class of codecs, and the contract of every codec.

A codec encodes a *chunk* (a 1-D contiguous float32 CPU tensor of any length, including 0) as a *payload* (a
1-D uint8 tensor on the CPU), and decodes payloads. A codec with GPU kernels also accepts chunks on a GPU
(``gradwire.gpu.transfers``).

- **A codec is a value.** It is a frozen dataclass without state. Equal parameters mean equal codecs, one
  instance serves all chunks and threads, and the same chunk gives the same bytes on every machine, with every
  instruction set and number of threads. ``str(codec)`` is its spec, which ``gradwire.codecs.parse`` reads.
- **The payload doesn't contain the element count**; the frame does. ``decode`` reads it from ``out``.
- **Memory belongs to the caller.** ``encode(x, out)`` writes to ``out`` (at least ``max_nbytes(len(x))``
  bytes) and returns the part that it filled, as a view; without ``out``, it allocates memory. ``decode`` and
  ``decode_add`` write only to ``out`` and ``acc``.
- **``decode_add(payload, acc)``** gives the same bits as ``decode`` followed by ``acc += decoded``.
- **``bound(x)``** is the guaranteed error bound: encoding and decoding change no finite element of ``x`` by
  more than ``bound(x)``. Only a codec whose card says that it can't guarantee a bound may return ``inf``.
- **Non-finite values stay non-finite.** A codec carries them exactly, or marks a block or the chunk so that
  it decodes to NaN. No NaN or infinity becomes a finite number. Finite values stay finite unless the card
  says otherwise.
- **A malformed payload raises** ``PayloadError`` before anything is written, so ``out`` and ``acc`` stay
  unchanged. The codec detects every wrong length. The frame's CRC detects flipped bits in a well-formed
  payload.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar

from gradwire import _native
from gradwire._native.tensors import check_tensor
from gradwire.codecs.spec import Reader
from gradwire.deferred import torch
from gradwire.errors import PayloadError, TensorError
from gradwire.fields import to_values


class Codec(ABC):
    """The base class of all codecs. The module's docstring states the contract."""

    name: ClassVar[str]
    """The name before the colon in a spec."""

    wire_id: ClassVar[int]
    """The codec's id in frames; part of the protocol, never reused."""

    EXAMPLES: ClassVar[tuple[str, ...]]
    """The specs that the conformance tests use."""

    EXACT: ClassVar[bool] = False
    """Whether decoding always returns the encoded bits, so that an encoder need not decode its payloads."""

    ON_CUDA: ClassVar[bool] = False
    """Whether this codec also accepts chunks on a GPU."""

    SEGMENT_NBYTES: ClassVar[int] = 1 << 22
    """The default segment size for this codec, in bytes of float32; the fastest in measurements."""

    @property
    def WANTS_RESIDUAL(self) -> bool:  # noqa: N802 - a constant of most codecs
        """Whether training needs error feedback with this codec."""
        return False

    @property
    def of_sums(self) -> Codec:
        """The codec that encodes finished sums. ``self`` can decode the payloads of that codec."""
        return self

    @property
    def parameter_unit(self) -> int:
        """The alignment of parameters in a bucket: each starts at a multiple of this number of values."""
        return 1

    @property
    def is_scalable(self) -> bool:
        """Whether the error bound is absolute, so that a scale can match it to the values."""
        return False

    @abstractmethod
    def __str__(self) -> str:
        """Return the spec, such that ``parse(str(codec)) == codec``."""

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Codec:
        """Return the codec of a spec ``name:argument,key=value,flag`` from its parts.

        ``argument`` is the text after the colon if it contains no ``=``, otherwise ""; a flag is an option
        whose value is "". Raises ``SpecError``.
        """
        reader = Reader(cls.name, cls.EXAMPLES[0], argument, options)
        fields = cls._fields(reader)
        reader.finish()
        return cls(*fields)

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[Any, ...]:  # noqa: ARG003 - a codec without parameters
        """Return the codec's field values, in order, from a spec's ``reader``."""
        return ()

    @cached_property
    def fingerprint(self) -> int:
        """The CRC32C of the spec. Frames carry it so that ranks detect different codecs."""
        return _native.crc32c(torch.frombuffer(bytearray(str(self), "ascii"), dtype=torch.uint8))

    @abstractmethod
    def max_nbytes(self, n: int) -> int:
        """Return the size of the largest payload of any chunk of ``n`` elements, in bytes."""

    @property
    def sends_floats(self) -> bool:
        """Whether payloads end with all elements as float32, so that NICs may compress them."""
        return False

    @abstractmethod
    def bound(self, x: torch.Tensor) -> float:
        """Return an upper bound on the absolute error of any finite element of ``x``.

        Non-finite elements are ignored; for an empty ``x``, the bound is 0.0 or the codec's absolute bound.
        """

    def encode(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the payload of ``x``, a view of ``out`` if given. Raises ``TensorError``."""
        check_chunk(x, "x", on_cuda=self.ON_CUDA)
        capacity = self.max_nbytes(x.numel())
        if out is None:
            out = torch.empty(capacity, dtype=torch.uint8, device="cpu")
        else:
            check_tensor(out, "out", torch.uint8)
            if out.numel() < capacity:
                raise TensorError(
                    f"{self}: expected at least {capacity} bytes in out for {x.numel()} elements, got "
                    f"{out.numel()}; allocate codec.max_nbytes(n) bytes"
                )
        return out[: self._encode(x.detach(), out.detach())]

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """Write the decoded chunk to ``out``. Raises ``PayloadError`` or ``TensorError``."""
        check_tensor(payload, "payload", torch.uint8)
        check_chunk(out, "out", on_cuda=self.ON_CUDA)
        self._decode(payload.detach(), out.detach())

    def decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        """Add the decoded chunk to ``acc``. Raises ``PayloadError`` or ``TensorError``."""
        check_tensor(payload, "payload", torch.uint8)
        check_chunk(acc, "acc", on_cuda=self.ON_CUDA)
        self._decode_add(payload.detach(), acc.detach())

    def decode_finished(self, payload: torch.Tensor, out: torch.Tensor, divisor: int) -> bool:
        """Decode to ``out`` on the CPU, divide by ``divisor``, and return whether all quotients are finite.

        A ``divisor`` of 1 changes no bits. Raises ``PayloadError`` or ``TensorError``.
        """
        check_tensor(payload, "payload", torch.uint8)
        check_chunk(out, "out")
        return self._decode_finished(payload.detach(), out.detach(), divisor)

    @abstractmethod
    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        """Encode ``x`` to ``out``, both checked and detached by the caller, and return the payload's size."""

    @abstractmethod
    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """Validate the payload, then decode it to ``out``. The caller has checked dtypes and layouts."""

    def _decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        """Validate the payload, then add the decoded chunk to ``acc``. Arguments are as for ``_decode``.

        The base class has the reference implementation. Compiled kernels need no intermediate chunk.
        """
        decoded = torch.empty(4 * acc.numel(), dtype=torch.uint8, device="cpu")
        self._decode(payload, decoded.view(torch.float32))
        # The kernel ``pack`` with 32 bits adds subnormals, even if the calling thread flushes them to 0.
        _native.decode_add("pack", decoded, acc, (32,))

    def _decode_finished(self, payload: torch.Tensor, out: torch.Tensor, divisor: int) -> bool:
        """Decode and divide. Arguments are as for ``_decode``. Compiled kernels need one pass."""
        self._decode(payload, out)
        return _native.finish(out, divisor)


to_values.register(Codec, str)


def check_chunk(x: torch.Tensor, what: str, *, on_cuda: bool = False) -> None:
    """Raise ``TensorError`` unless ``x`` is 1-D contiguous float32, on the CPU if not ``on_cuda``."""
    check_tensor(x, what, torch.float32, on_cuda=on_cuda)


def malformed(codec: Codec, payload: torch.Tensor, n: int, reason: str) -> PayloadError:
    """Return the error for a payload that isn't a valid encoding of ``n`` elements."""
    return PayloadError(
        f"expected a {codec} encoding of {n} elements, got an invalid payload of {payload.numel()} bytes: "
        f"{reason}; use the same codec on all ranks"
    )


# The magnitudes of a chunk's finite values, from which error bounds follow.


def largest_finite(x: torch.Tensor) -> float:
    """Return the largest finite magnitude of ``x``, or 0.0 if no value is finite."""
    if x.numel() == 0:
        return 0.0
    return float(torch.where(x.isfinite(), x, 0.0).abs().max().detach())


def largest_rms(x: torch.Tensor, block: int) -> float:
    """Return the largest root mean square of any block's finite elements, or 0.0 if no value is finite."""
    if x.numel() == 0:
        return 0.0
    # Pad the last block with NaN, because non-finite elements are ignored.
    rows = torch.nn.functional.pad(x.detach(), (0, -x.numel() % block), value=math.nan).view(-1, block)
    finite = rows.isfinite()
    squares = torch.where(finite, rows, 0.0).double().square().sum(dim=1)
    return math.sqrt(float((squares / finite.sum(dim=1).clamp(min=1)).max()))


def floor_log2(value: float) -> int:
    """Return the exponent e with ``2**e <= value < 2**(e + 1)``, for a positive ``value``."""
    return math.frexp(value)[1] - 1


def half_ulp(value: float, mantissa_bits: int, min_exponent: int) -> float:
    """Return half a unit in the last place of ``value`` in a binary format, and 0.0 for 0.

    ``mantissa_bits`` is the number of stored bits; ``min_exponent`` is the smallest normal number's exponent.
    """
    if value == 0.0:
        return 0.0
    return math.ldexp(1.0, max(floor_log2(value), min_exponent) - mantissa_bits - 1)


def truncation_bound(x: torch.Tensor, dropped_bits: int) -> float:
    """Return an upper bound on the error of clearing the ``dropped_bits`` low bits of floats."""
    largest = largest_finite(x)
    if largest == 0.0 or dropped_bits == 0:
        return 0.0
    return min(largest, 2.0 ** (max(floor_log2(largest), -126) - 23 + dropped_bits))
