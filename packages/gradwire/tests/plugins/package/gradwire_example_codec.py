"""A codec of another package: the upper half of each float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire import Codec
from gradwire.codecs.base import malformed, truncation_bound
from gradwire.errors import SpecError


@dataclass(frozen=True)
class Top16(Codec):
    """The upper 16 bits of each float32, little-endian."""

    name: ClassVar[str] = "top16"
    wire_id: ClassVar[int] = 200
    EXAMPLES: ClassVar[tuple[str, ...]] = ("top16",)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Top16:
        """Return the codec, which has no options."""
        if argument or options:
            raise SpecError("top16 has no options; write 'top16'")
        return cls()

    def max_nbytes(self, n: int) -> int:
        """Return two bytes a value."""
        return 2 * n

    def bound(self, x: torch.Tensor) -> float:
        """Return the largest error of clearing the lower bits."""
        return truncation_bound(x, 16)

    def _encode(self, x: torch.Tensor, out: torch.Tensor) -> int:
        nbytes = self.max_nbytes(len(x))
        out[:nbytes] = x.view(torch.uint8).view(-1, 4)[:, 2:].reshape(-1)
        return nbytes

    def _decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if len(payload) != self.max_nbytes(len(out)):
            raise malformed(self, payload, len(out), "each value has two bytes")
        out.zero_()
        out.view(torch.uint8).view(-1, 4)[:, 2:] = payload.view(-1, 2)
