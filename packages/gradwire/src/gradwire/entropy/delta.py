"""Lossless weight deltas: the changes since the version that a receiver holds, bit for bit.

A delta contains the change of each weight in units in the last place. Weights' bits are read as integers in
the floats' total order, which preserves -0, infinities, and the payloads of NaN. Most changes are -1, 0, or
1. A full copy is the delta from weights that are all +0. ``docs/weight_delta.md`` describes the format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from gradwire import _native
from gradwire._native import Words
from gradwire._native.tensors import DeltaBody, DeltaSource, check_tensor
from gradwire.deferred import torch
from gradwire.entropy.coder import room_for
from gradwire.errors import PayloadError, SpecError, VersionError, shown

WordName = Literal["bf16", "fp32"]
FORMAT_VERSION = 1
HEADER_NBYTES = 28
HASH_NBYTES = 8
LAST_VERSION = 2**64 - 1
_FULL, _HASHED, _PLAIN = 1, 2, 4
_VALID_FLAGS = (0, _FULL, _HASHED, _FULL | _HASHED, _FULL | _PLAIN, _FULL | _PLAIN | _HASHED)
_LAYOUT = struct.Struct("<4B3Q")


@dataclass(frozen=True)
class DeltaHeader:
    """The header of a delta.

    ``base`` is None for a full copy, and ``check`` is None without a hash. The body of a ``plain`` full copy
    is the uncoded weights.
    """

    word_nbytes: int
    n: int
    version: int
    base: int | None
    check: int | None
    plain: bool = False

    def write(self) -> bytes:
        """Return the header's bytes."""
        flags = (_FULL if self.base is None else 0) | (_HASHED if self.check is not None else 0)
        flags |= _PLAIN if self.plain else 0
        fixed = _LAYOUT.pack(FORMAT_VERSION, self.word_nbytes, flags, 0, self.n, self.base or 0, self.version)
        return fixed if self.check is None else fixed + struct.pack("<Q", self.check)

    @property
    def nbytes(self) -> int:
        """The size of the header in bytes."""
        return HEADER_NBYTES + (0 if self.check is None else HASH_NBYTES)

    @classmethod
    def read(cls, payload: torch.Tensor) -> DeltaHeader:
        """Return the header of a payload. Raises ``PayloadError``."""
        return cls.parse(payload[: HEADER_NBYTES + HASH_NBYTES].numpy().tobytes(), payload.numel())

    @classmethod
    def parse(cls, front: bytes, nbytes: int) -> DeltaHeader:
        """Return the header at ``front``, the start of a payload of ``nbytes``. Raises ``PayloadError``."""
        if len(front) < HEADER_NBYTES:
            raise _malformed(nbytes, f"its header of {HEADER_NBYTES} bytes is truncated")
        version, word_nbytes, flags, unused, n, base, made = _LAYOUT.unpack_from(front)
        if version != FORMAT_VERSION:
            raise _malformed(nbytes, f"expected the format version {FORMAT_VERSION}, got {version}")
        if flags not in _VALID_FLAGS or unused or (flags & _FULL and base):
            raise _malformed(nbytes, "unused bits of its header are set")
        check = None
        if flags & _HASHED:
            if len(front) < HEADER_NBYTES + HASH_NBYTES:
                raise _malformed(nbytes, "its hash is truncated")
            (check,) = struct.unpack_from("<Q", front, HEADER_NBYTES)
        return cls(word_nbytes, n, made, None if flags & _FULL else base, check, bool(flags & _PLAIN))


def _malformed(nbytes: int, reason: str) -> PayloadError:
    return PayloadError(
        f"expected a weight delta, got an invalid payload of {nbytes} bytes: {reason}; send a full copy"
    )


class _Kind(NamedTuple):
    """The type of a receiver's weights, for kernels and for torch."""

    words: Words
    dtype: torch.dtype
    nbytes: int


def _kind(dtype: str) -> _Kind:
    if dtype == "bf16":
        return _Kind(Words.BF16, torch.bfloat16, 2)
    if dtype == "fp32":
        return _Kind(Words.FP32, torch.float32, 4)
    raise SpecError(f"expected 'bf16' or 'fp32' for a delta's dtype, got {shown(dtype)}; pass 'bf16'")


def words_dtype(dtype: WordName) -> torch.dtype:
    """Return the torch dtype of a receiver's weights. Raises ``SpecError``."""
    return _kind(dtype).dtype


def max_nbytes(dtype: WordName, n: int) -> int:
    """Return the size of the largest payload of ``n`` weights, in bytes."""
    return HEADER_NBYTES + HASH_NBYTES + _native.delta_max_nbytes(_kind(dtype).words, n)


def round_masters(masters: torch.Tensor, words: torch.Tensor) -> None:
    """Round float32 master weights to ``words``, a receiver's bfloat16 or float32 weights."""
    if words.dtype == torch.bfloat16:
        _native.encode("bf16", masters, words.view(torch.uint8), ())
    else:
        words.copy_(masters)


class DeltaEncoder:
    """An encoder of changes of float32 master weights, for a receiver with bfloat16 or float32 weights.

    The receiver's weights are the masters rounded to nearest even (a NaN keeps its sign and the upper bits of
    its payload and becomes quiet), or the masters themselves. Receivers with different versions need separate
    encoders.

    Parameters
    ----------
    like
        The masters, or a tensor with the same number of elements.
    dtype
        ``"bf16"`` or ``"fp32"``: the type of the receiver's weights.
    entropy
        Whether to use the entropy coder. Without the coder, a delta takes two bits per weight, plus the full
        value of each weight with a large change; a full copy is the uncoded weights.
    base, version
        The weights that the receiver holds, and their version; ``encode`` changes ``base``. By default, the
        receiver has no weights yet.

    Examples
    --------
    >>> import torch
    >>> masters = torch.randn(1000)
    >>> encoder, decoder = DeltaEncoder(masters), DeltaDecoder()
    >>> weights = torch.empty(1000, dtype=torch.bfloat16)
    >>> decoder.apply(encoder.encode(masters, version=1), weights)  # the first payload is a full copy
    1
    >>> masters += 1e-4
    >>> decoder.apply(encoder.encode(masters, version=2), weights)
    2
    >>> torch.equal(weights, masters.bfloat16())
    True
    """

    def __init__(
        self,
        like: torch.Tensor,
        dtype: WordName = "bf16",
        *,
        entropy: bool = True,
        base: torch.Tensor | None = None,
        version: int | None = None,
    ) -> None:
        self._kind = _kind(dtype)
        self._dtype: WordName = dtype
        self._entropy = entropy
        if base is None:
            with torch.inference_mode(mode=False):  # later changes may be outside of inference mode
                base = torch.zeros(like.numel(), dtype=self._kind.dtype, device="cpu")
        check_tensor(base, "base", self._kind.dtype)
        self.base = base
        """The weights that the receiver holds after the last payload."""
        self.version = version
        """The version of the last payload; None before the first payload."""

    @property
    def max_nbytes(self) -> int:
        """The size of the largest payload, in bytes."""
        return max_nbytes(self._dtype, self.base.numel())

    def encode(
        self,
        masters: torch.Tensor,
        version: int,
        *,
        full: bool = False,
        checked: bool = False,
        bounded: bool = False,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the payload that updates a receiver from the last version to this one.

        Parameters
        ----------
        masters
            1-D, contiguous, float32, on the CPU.
        version
            The masters' version, such as the step number; larger than the last version unless ``full``.
        full
            Whether to send a full copy, which any receiver can apply. The first payload is always full.
        checked
            Whether to add a hash of the weights, which the receiver compares with the hash of its weights.
        bounded
            Whether to send the weights uncoded if a delta would be larger.
        out
            Memory of ``max_nbytes`` bytes, of which the result is a view; by default, new memory.
        """
        header = self.header(masters, version, full=full, checked=checked)
        room, used = room_for(self.max_nbytes, out), 0
        if not header.plain:
            source = self.source(masters, header)
            ((_, used),) = _native.delta_encode(self._kind.words, [source], room, code=self._entropy)
        if header.plain or (bounded and used > header.nbytes + self.base.nbytes):
            used = self._write_plain(masters, replace(header, base=None, plain=True), room)
        self.version = version
        return room[:used]

    def header(self, masters: torch.Tensor, version: int, *, full: bool, checked: bool) -> DeltaHeader:
        """Return the header of the next payload. Raises the errors of ``encode``."""
        check_tensor(masters, "masters", torch.float32)
        if masters.numel() != self.base.numel():
            raise SpecError(
                f"expected {self.base.numel()} master weights for this encoder, got {masters.numel()}; use "
                "one encoder per tensor"
            )
        self._check_version(version, full=full)
        base = None if full else self.version
        plain = base is None and not self._entropy
        return DeltaHeader(self._kind.nbytes, masters.numel(), version, base, 0 if checked else None, plain)

    def source(self, masters: torch.Tensor, header: DeltaHeader) -> DeltaSource:
        """Return the kernels' input for a delta with this header. For a full copy, first clear ``base``."""
        if header.base is None:
            self.base.zero_()
        return DeltaSource(masters, self.base, header.write(), header.check is not None)

    def _write_plain(self, masters: torch.Tensor, header: DeltaHeader, out: torch.Tensor) -> int:
        round_masters(masters, self.base)
        if header.check is not None:
            header = replace(header, check=_native.hash64(self.base))
        used = header.nbytes + self.base.nbytes
        out[: header.nbytes] = torch.frombuffer(bytearray(header.write()), dtype=torch.uint8)
        out[header.nbytes : used] = self.base.view(torch.uint8)
        return used

    def _check_version(self, version: int, *, full: bool) -> None:
        if not 0 <= version <= LAST_VERSION:
            raise SpecError(
                f"expected a version from 0 to 2^64 - 1, got {shown(version)}; pass the step number"
            )
        if not full and self.version is not None and version <= self.version:
            raise VersionError(
                f"expected a version above {self.version} for a delta, got {version}; "
                "pass full=True to restart from an earlier version"
            )


class DeltaDecoder:
    """A receiver of deltas, which applies them to weights in place and tracks the version.

    Parameters
    ----------
    dtype
        ``"bf16"`` or ``"fp32"``, as in the encoder.
    version
        The version of the weights; None, the default, if the receiver has no weights yet.
    """

    def __init__(self, dtype: WordName = "bf16", *, version: int | None = None) -> None:
        self._kind = _kind(dtype)
        self.version = version
        """The version of the weights; None before the first full copy and after a hash mismatch."""

    def apply(self, payload: torch.Tensor, weights: torch.Tensor) -> int:
        """Update ``weights`` to the payload's version, and return that version.

        ``weights`` is a 1-D contiguous tensor on the CPU of dtype bfloat16 or float32.

        Raises
        ------
        PayloadError
            The payload is malformed or belongs to a different tensor. ``weights`` are unchanged.
        VersionError
            The payload is a delta from a version other than the decoder's, and ``weights`` are unchanged; or
            the payload's hash differs from the hash of the new weights. In both cases, request a full copy.
        """
        check_tensor(payload, "payload", torch.uint8)
        check_tensor(weights, "weights", self._kind.dtype)
        apply_message(payload, [(0, payload.numel())], [self], [weights])
        assert self.version is not None
        return self.version

    @property
    def words(self) -> Words:
        """The type of the weights, for the kernels."""
        return self._kind.words

    def take(self, header: DeltaHeader, hash64: Callable[[], int]) -> None:
        """Adopt the header's version. Raises ``VersionError`` if the weights' hash differs."""
        self.version = header.version
        if header.check is not None and header.check != hash64():
            self.version = None
            raise VersionError(
                f"expected the weights of version {header.version}, got other weights; send a full copy"
            )

    def check(self, header: DeltaHeader, nbytes: int, weights: torch.Tensor) -> None:
        """Raise ``PayloadError`` or ``VersionError`` unless a payload with this header can be applied."""
        if (header.word_nbytes, header.n) != (self._kind.nbytes, weights.numel()):
            raise PayloadError(
                f"expected a delta of {weights.numel()} weights of {self._kind.nbytes} bytes, got one of "
                f"{header.n} weights of {header.word_nbytes} bytes; use equal tensors at both ends"
            )
        if header.base is not None and header.base != self.version:
            expected = "" if self.version is None else f"a delta from version {self.version} or "
            raise VersionError(
                f"expected {expected}a full copy, got a delta from version {header.base}; send a full copy"
            )
        if header.plain and nbytes != header.nbytes + weights.nbytes:
            raise PayloadError(
                f"expected an uncoded copy of {weights.nbytes} bytes for {weights.numel()} weights, got "
                f"{nbytes - header.nbytes} bytes; send a full copy"
            )


def encode_message(
    masters: Sequence[torch.Tensor],
    encoders: Sequence[DeltaEncoder | None],
    version: int,
    out: torch.Tensor,
    dtype: WordName,
    *,
    full: bool,
    checked: bool,
    align: int,
) -> list[tuple[int, int]]:
    """Write the payloads of several encoders to ``out``, and return the start and end of each payload.

    Masters without an encoder are written uncoded. ``out`` has room for the largest payloads, each at a
    multiple of ``align`` bytes.
    """
    headers = list[DeltaHeader | None]()
    for each, encoder in zip(masters, encoders, strict=True):
        if encoder is None:
            check_tensor(each, "masters", torch.float32)
            headers.append(None)
        else:
            headers.append(encoder.header(each, version, full=full, checked=checked))
    sources = [
        DeltaSource(each) if encoder is None or header is None else encoder.source(each, header)
        for each, encoder, header in zip(masters, encoders, headers, strict=True)
    ]
    spans = _native.delta_encode(_kind(dtype).words, sources, out, align=align, code=True)
    for encoder in encoders:
        if encoder is not None:
            encoder.version = version
    return spans


def apply_message(
    message: torch.Tensor,
    spans: Sequence[tuple[int, int]],
    decoders: Sequence[DeltaDecoder],
    weights: Sequence[torch.Tensor],
) -> None:
    """Apply the payloads at ``spans`` of a message. Raises the errors of ``DeltaDecoder.apply``.

    All decoders have the same dtype. Payloads before an invalid payload may have been applied.
    """
    data, address = message.numpy(), message.data_ptr()
    headers, bodies = list[DeltaHeader](), list[DeltaBody]()
    for (begin, end), decoder, each in zip(spans, decoders, weights, strict=True):
        front = data[begin : min(end, begin + HEADER_NBYTES + HASH_NBYTES)].tobytes()
        headers.append(header := DeltaHeader.parse(front, end - begin))
        decoder.check(header, end - begin, each)
        start = begin + header.nbytes
        bodies.append(DeltaBody(address + start, end - start, each, header.base is None, header.plain))
    applied, reason = _native.delta_apply(decoders[0].words, bodies)
    error: Exception | None = None
    if reason is not None:
        error = PayloadError(
            f"expected a delta of {weights[applied].numel()} weights, got an invalid body of "
            f"{bodies[applied].nbytes} bytes: {reason}; send a full copy"
        )
    for decoder, header, each in zip(decoders[:applied], headers, weights, strict=False):
        try:
            decoder.take(header, partial(_native.hash64, each))
        except VersionError as mismatch:
            error = error or mismatch
    if error is not None:
        raise error
