"""No compression: the baseline, on the same code path as every other codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.native import PlainCodec
from gradwire.deferred import torch


@dataclass(frozen=True)
class Identity(PlainCodec):
    """Uncompressed floats.

    Formula: y = x. Payload: 4n bytes, the floats little-endian. Bound: 0. Non-finite values: carried exactly,
    with all bits. Ratio: 1.

    Examples
    --------
    >>> import torch
    >>> payload = Identity().encode(torch.tensor([1.0, -2.0]))
    >>> payload.tolist()
    [0, 0, 128, 63, 0, 0, 0, 192]
    """

    name: ClassVar[str] = "identity"
    wire_id: ClassVar[int] = 0
    EXAMPLES: ClassVar[tuple[str, ...]] = ("identity",)
    EXACT: ClassVar[bool] = True
    SEGMENT_NBYTES: ClassVar[int] = 1 << 18  # the network is the bottleneck: keep it busy between two hops
    _format: ClassVar[str] = "pack"
    _params: ClassVar[tuple[int, ...]] = (32,)

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the contract's parameter
        """Return 0, because the codec is lossless."""
        return 0.0
