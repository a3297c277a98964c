"""The codec of weights that have moved a little: small whole numbers, entropy coded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire import _native
from gradwire._native import Words
from gradwire.codecs.base import Codec
from gradwire.codecs.spec import Reader
from gradwire.errors import PayloadError


@dataclass(frozen=True)
class Moves(Codec):
    """Floats close to +0 in the order of all floats, without loss; ``words.moves`` makes them.

    Formula: y = x. Payload: the body of a delta of float32 words from +0 (``docs/weight_delta.md``). Bound:
    0. It isn't a codec of gradients, so it has no row in the codecs' table; its number in frames is above
    theirs.
    """

    name: ClassVar[str] = "moves"
    wire_id: ClassVar[int] = 128
    EXAMPLES: ClassVar[tuple[str, ...]] = ("moves",)
    EXACT: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Moves:
        """Return the codec. Raises ``SpecError`` for an argument or option."""
        Reader(cls.name, cls.EXAMPLES[0], argument, options).finish()
        return cls()

    def max_nbytes(self, n: int) -> int:
        """Return the largest payload, in bytes, of ``n`` elements."""
        return _native.delta_max_nbytes(Words.FP32, n)

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the contract's parameter
        """Return 0: nothing is lost."""
        return 0.0

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        return _native.delta_encode(Words.FP32, x, torch.zeros_like(x), out, code=True)

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        moved = torch.zeros_like(out)
        reason = _native.delta_apply(Words.FP32, payload, moved)
        if reason is not None:
            raise PayloadError(
                f"a payload of {payload.numel()} bytes does not tell how {out.numel()} weights move: "
                f"{reason}; do all ranks run the same version?"
            )
        out.copy_(moved)
