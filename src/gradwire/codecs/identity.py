"""No compression: the baseline that everything is measured against, by the same path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.codecs.base import Codec, malformed, view_as
from gradwire.codecs.spec import Reader


@dataclass(frozen=True)
class Identity(Codec):
    """The floats as they are.

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

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Identity:
        """Make the codec of ``identity``."""
        Reader(cls.name, cls.EXAMPLES[0], argument, options).finish()
        return cls()

    def max_nbytes(self, n: int) -> int:
        """Return 4 bytes an element."""
        return 4 * n

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the contract's parameter
        """Return 0: nothing is lost."""
        return 0.0

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        nbytes = 4 * x.numel()
        out[:nbytes] = view_as(x, torch.uint8)
        return nbytes

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if payload.numel() != 4 * out.numel():
            raise malformed(self, payload, out.numel(), f"it must have {4 * out.numel()} bytes")
        view_as(out, torch.uint8).copy_(payload)
