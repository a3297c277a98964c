"""Codecs that wrap another codec. A plan creates them; they have no spec."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from gradwire import _native
from gradwire.codecs.base import Codec, floor_log2, largest_finite, malformed
from gradwire.codecs.native import NativeCodec
from gradwire.deferred import torch
from gradwire.errors import SpecError


@dataclass(frozen=True)
class CodecWrapper(Codec):
    """A codec that wraps ``codec``. The ``str`` of a wrapper is for errors and fingerprints."""

    codec: Codec

    REMEDY: ClassVar[str]
    """The error message of ``from_spec``: the plan's option for such a codec."""

    @property
    def WANTS_RESIDUAL(self) -> bool:  # noqa: N802 - as the base class has it
        """Whether the wrapped codec needs a residual."""
        return self.codec.WANTS_RESIDUAL

    def __str__(self) -> str:
        return f"{self.name}:{self.codec}"

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Codec:  # noqa: ARG003
        """Raise ``SpecError``, because such a codec has no spec."""
        raise SpecError(cls.REMEDY)


# Encoded floats, which NICs may compress on the link without further error.

_WHOLE = (32,)
"""The parameters of the format ``pack`` with all bits of a float."""
_OFFLOADABLE = "inceptionn, or truncate or bitpack with more than 8 bits per value"


@dataclass(frozen=True)
class Projected(CodecWrapper):
    """Values encoded and decoded on the host, sent as float32, so that NICs compress without further error.

    Formula: y is the codec's decoding of its encoding of x. Payload: 4n bytes, the floats y, little-endian.
    Bound: the codec's. Non-finite values: the codec's. Ratio: 1 at the host; the codec's on a link with NICs
    that compress.

    A NIC may be absent, restart in the middle of a stream, or send the edges of packets uncompressed. For
    identical bits on all ranks, the host therefore encodes and decodes every value before it sends it. This
    requires a codec that encodes values independently, and adds no error to values that it has decoded.

    Examples
    --------
    >>> import torch
    >>> from gradwire.codecs import parse
    >>> payload = Projected(parse("truncate:16")).encode(torch.tensor([1.0, 1.0 + 2**-10]))
    >>> payload.view(torch.float32).tolist()
    [1.0, 1.0]
    """

    codec: NativeCodec

    name = "projected"
    wire_id = 129
    REMEDY = "offload has no spec; set offload in a plan, as in Plan(offload='inceptionn:2^-10')"

    def max_nbytes(self, n: int) -> int:
        """Return the size of ``n`` floats in bytes."""
        return 4 * n

    @property
    def sends_floats(self) -> bool:
        """Whether payloads end with all elements as float32: always True."""
        return True

    def bound(self, x: torch.Tensor) -> float:
        """Return the wrapped codec's bound."""
        return self.codec.bound(x)

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        projected = torch.empty_like(x)
        self.codec.decode(self.codec.encode(x), projected)
        return _native.encode("pack", projected, out, _WHOLE)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        _native.decode("pack", payload, out, _WHOLE)

    def _decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        _native.decode_add("pack", payload, acc, _WHOLE)


def offloadable(codec: Codec) -> NativeCodec:
    """Return the codec if NICs can apply it. Raises ``SpecError`` for any other codec."""
    if not isinstance(codec, NativeCodec) or not codec.is_offloadable:
        raise SpecError(f"expected a codec that NICs can apply, got {codec}; use {_OFFLOADABLE}")
    return codec


# An exact power-of-two scale for each chunk, so that absolute bounds work for gradients of any scale.

_EXPONENT = struct.Struct("<i")
_MOST = 126
"""The largest exponent of a scale: up to it, 2^k and 2^-k are normal floats."""


@dataclass(frozen=True)
class Scaled(CodecWrapper):
    """A codec with an absolute bound, applied to chunks that a power of two scales to just below 1.

    Formula: y = 2^-k C(2^k x), with k such that the largest magnitude of 2^k x is at least 1/2 and below 1. k
    is at most 126, so largest magnitudes below 2^-127 are scaled to less than 1/2. k is 0, so y = C(x), for
    a chunk of zeros, with a non-finite value, or with a magnitude of 2^126 or more.

    Payload: k, a signed 32-bit number, little-endian; then the codec's payload of 2^k x.

    Bound: 2^-k times the codec's: at most twice the codec's bound times the largest magnitude. The products
    are exact, except for values of 2^k x below 2^-126, which every scalable codec rounds to 0. Non-finite
    values: the codec's. Ratio: the codec's.

    Every payload carries its own k, so ranks need not agree on it before they send, and an exchange needs no
    more round trips than without a scale.

    Examples
    --------
    >>> import torch
    >>> from gradwire.codecs import parse
    >>> codec, y = Scaled(parse("errbound:2^-8")), torch.empty(2)
    >>> codec.decode(codec.encode(torch.tensor([3e-20, -2e-20])), y)
    >>> [f"{value:.1e}" for value in y.tolist()]
    ['3.0e-20', '-2.0e-20']
    """

    name = "scaled"
    wire_id = 130
    REMEDY = "scale has no spec; set scale in a plan, as in Plan(codec, scale='auto')"

    def max_nbytes(self, n: int) -> int:
        """Return the size of the exponent plus the wrapped codec's largest payload."""
        return _EXPONENT.size + self.codec.max_nbytes(n)

    @property
    def sends_floats(self) -> bool:
        """Whether the wrapped codec's payload, which is last, ends with all elements as float32."""
        return self.codec.sends_floats

    @staticmethod
    def exponent_of(payload: torch.Tensor) -> int:
        """Return k, the scale's exponent, from the start of a payload."""
        return int(_EXPONENT.unpack_from(memoryview(payload.numpy()))[0])  # type: ignore[arg-type]

    def bound(self, x: torch.Tensor) -> float:
        """Return the wrapped codec's bound, divided by the chunk's scale."""
        largest = largest_finite(x)
        if largest == 0.0:
            return self.codec.bound(x)
        scaled = self.codec.bound(x) * 2.0 ** max(floor_log2(largest) + 1, -_MOST)
        return scaled if bool(x.isfinite().all()) else max(scaled, self.codec.bound(x))

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        exponent = _exponent(x)
        _EXPONENT.pack_into(memoryview(out.numpy()), 0, exponent)  # type: ignore[arg-type]
        if exponent:
            scaled = torch.empty_like(x)
            _native.scale(x, scaled, exponent)
            x = scaled
        return _EXPONENT.size + self.codec.encode(x, out[_EXPONENT.size :]).numel()

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        exponent, rest = self._parts(payload, out.numel())
        self.codec.decode(rest, out)
        if exponent:
            _native.scale(out, out, -exponent)

    def _decode_add(self, payload: torch.Tensor, acc: torch.Tensor) -> None:
        exponent, rest = self._parts(payload, acc.numel())
        if not exponent:
            self.codec.decode_add(rest, acc)
            return
        scaled = torch.empty_like(acc)
        self.codec.decode(rest, scaled)
        _native.scale(scaled, acc, -exponent, add=True)

    def _parts(self, payload: torch.Tensor, n: int) -> tuple[int, torch.Tensor]:
        if payload.numel() < _EXPONENT.size:
            raise malformed(self, payload, n, f"its length is below the {_EXPONENT.size} bytes of the scale")
        exponent = self.exponent_of(payload)
        if not -_MOST <= exponent <= _MOST:
            raise malformed(self, payload, n, f"the scale 2^{exponent} is not within 2^-{_MOST}..2^{_MOST}")
        return exponent, payload[_EXPONENT.size :]


def _exponent(x: torch.Tensor) -> int:
    """Return the exponent k of a chunk's scale."""
    exponent = _native.largest_exponent(x)
    return 0 if exponent is None or exponent >= _MOST else min(-(exponent + 1), _MOST)


def scalable(codec: Codec) -> Codec:
    """Return the codec if ``scale`` can be used with it. Raises ``SpecError`` for any other codec."""
    if not codec.is_scalable:
        raise SpecError(
            "scale: expected a codec with an absolute bound (inceptionn, or errbound:2^-24 to 2^-1), "
            f"got {codec}; omit scale, or use errbound:2^-8"
        )
    return codec
