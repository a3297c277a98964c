"""Codecs around another one, which a plan makes and no spec names."""

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
    """A codec around ``codec``; its name in ``str`` is for errors and fingerprints."""

    codec: Codec

    REMEDY: ClassVar[str]
    """The error's remedy: the part of a plan that makes such a codec."""

    @property
    def WANTS_RESIDUAL(self) -> bool:  # noqa: N802 - as the base class has it
        """Whether the wrapped codec needs a residual."""
        return self.codec.WANTS_RESIDUAL

    def __str__(self) -> str:
        return f"{self.name}:{self.codec}"

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Codec:  # noqa: ARG003
        """Raise ``SpecError``: no spec names such a codec."""
        raise SpecError(cls.REMEDY)


# Floats that network cards may encode on the way without further loss.

_WHOLE = (32,)
"""The parameters of the format ``pack`` with all bits of a float."""
_OFFLOADABLE = "inceptionn, truncate, and bitpack, the last two with more than 8 bits of each value"


@dataclass(frozen=True)
class Projected(CodecWrapper):
    """The floats that a codec decodes: a NIC with this codec compresses them without further loss.

    Formula: y is what the codec decodes from x. Payload: 4n bytes, the floats y, little-endian. Bound: the
    codec's. Non-finite values: the codec's. Ratio: 1 at the host; that of the codec on the link, if NICs are
    there.

    A NIC may be absent, restart in the middle of a stream, or leave the edges of packets as they are. So that
    all ranks still end with identical bits, the host makes of every value what the codec makes of it, before
    it sends it. This takes a codec that encodes each value by itself, and decoded values without loss.

    Examples
    --------
    >>> import torch
    >>> from gradwire.codecs import parse
    >>> payload = Projected(parse("truncate:16")).encode(torch.tensor([1.0, 1.0 + 2**-10]))
    >>> payload.view(torch.float32).tolist()
    [1.0, 1.0]
    """

    codec: NativeCodec

    name: ClassVar[str] = "projected"
    wire_id: ClassVar[int] = 129
    REMEDY: ClassVar[str] = "what NICs may do is a plan's offload, as in Plan(offload='inceptionn:2^-10')"

    def max_nbytes(self, n: int) -> int:
        """Return the size of the floats."""
        return 4 * n

    @property
    def sends_floats(self) -> bool:
        """Whether payloads end with all elements as float32: always."""
        return True

    def bound(self, x: torch.Tensor) -> float:
        """Return the codec's bound."""
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
    """Return the codec if NICs can apply it. Raises ``SpecError`` for others."""
    if not isinstance(codec, NativeCodec) or not codec.is_offloadable:
        raise SpecError(
            "a NIC cuts streams anywhere and may compress values again, so its codec must encode each value "
            f"by itself and the same way twice, which {codec} does not; name one of {_OFFLOADABLE}"
        )
    return codec


# An exact power of two for each chunk, which fits absolute bounds to values of any size.

_EXPONENT = struct.Struct("<i")
_MOST = 126
"""2^k and 2^-k are normal floats."""


@dataclass(frozen=True)
class Scaled(CodecWrapper):
    """A codec with an absolute bound, for values that a power of two brings just below 1.

    Formula: y = 2^-k C(2^k x), with k such that the largest magnitude of 2^k x is at least 1/2 and below 1. k
    is at most 126, so largest magnitudes below 2^-127 come less near to 1. It is 0, so y = C(x), for a chunk
    of zeros, one with a value that isn't finite, and one with a magnitude of 2^126 or more.

    Payload: k, a signed 32-bit number, little-endian; then the codec's payload of 2^k x.

    Bound: 2^-k times the codec's: at most twice the codec's bound times the largest magnitude. The products
    are exact, but for values of 2^k x below 2^-126, which every codec with a scale takes for 0. Non-finite
    values: the codec's. Ratio: the codec's.

    Every payload says its own k. So there is nothing on which ranks must agree before they send, and an
    exchange has no more round trips than without a scale.

    Examples
    --------
    >>> import torch
    >>> from gradwire.codecs import parse
    >>> codec, y = Scaled(parse("errbound:2^-8")), torch.empty(2)
    >>> codec.decode(codec.encode(torch.tensor([3e-20, -2e-20])), y)
    >>> [f"{value:.1e}" for value in y.tolist()]
    ['3.0e-20', '-2.0e-20']
    """

    name: ClassVar[str] = "scaled"
    wire_id: ClassVar[int] = 130
    REMEDY: ClassVar[str] = "a plan says whether values are scaled, as in Plan(codec, scale='auto')"

    def max_nbytes(self, n: int) -> int:
        """Return the codec's largest payload and the bytes before it."""
        return _EXPONENT.size + self.codec.max_nbytes(n)

    @property
    def sends_floats(self) -> bool:
        """Whether the wrapped codec's payload, which is at the end, is floats."""
        return self.codec.sends_floats

    @staticmethod
    def exponent_of(payload: torch.Tensor) -> int:
        """Return k, the exponent that a payload begins with."""
        return int(_EXPONENT.unpack_from(memoryview(payload.numpy()))[0])  # type: ignore[arg-type]

    def bound(self, x: torch.Tensor) -> float:
        """Return the codec's bound for values just below 1, times the power of two that brings them back."""
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
            raise malformed(self, payload, n, f"it begins with {_EXPONENT.size} bytes for the scale")
        exponent = self.exponent_of(payload)
        if not -_MOST <= exponent <= _MOST:
            raise malformed(self, payload, n, f"the scale 2^{exponent} is beyond 2^{_MOST}")
        return exponent, payload[_EXPONENT.size :]


def _exponent(x: torch.Tensor) -> int:
    """Return the exponent k that scales a chunk."""
    exponent = _native.largest_exponent(x)
    return 0 if exponent is None or exponent >= _MOST else min(-(exponent + 1), _MOST)


def scalable(codec: Codec) -> Codec:
    """Return the codec if its bound is absolute and a scale fits it to values. Raises ``SpecError``."""
    if not codec.is_scalable:
        raise SpecError(
            "a scale fits the absolute bounds of inceptionn and of errbound, 2^-24 to 2^-1, to values of any "
            f"size, but {codec} has no such bound; leave out scale"
        )
    return codec
