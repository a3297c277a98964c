"""What network cards on the way may do with gradients, and values that lose nothing there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire import _native
from gradwire.codecs.base import Codec
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.wrappers.wrapper import Wrapper
from gradwire.deferred import torch
from gradwire.errors import SpecError

_WHOLE = (32,)
"""The parameters of the format ``pack`` with all bits of a float."""
_OFFLOADABLE = "inceptionn, truncate, and bitpack, the last two with more than 8 bits of each value"


@dataclass(frozen=True)
class Projected(Wrapper):
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
        """Always."""
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
