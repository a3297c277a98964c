"""No compression: the baseline, which uses the same path as every other codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader
from gradwire.deferred import torch


@dataclass(frozen=True)
class Identity(NativeCodec):
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
    _format: ClassVar[str] = "pack"

    @property
    def _params(self) -> tuple[int, ...]:
        return (32,)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Identity:
        """Return the codec of ``identity``."""
        Reader(cls.name, cls.EXAMPLES[0], argument, options).finish()
        return cls()

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the contract's parameter
        """Return 0: nothing is lost."""
        return 0.0
