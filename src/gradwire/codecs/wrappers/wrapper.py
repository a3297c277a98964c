"""The base class of codecs around another one, which a plan makes and no spec names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.base import Codec
from gradwire.errors import SpecError


@dataclass(frozen=True)
class Wrapper(Codec):
    """A codec around ``codec``; its name in ``str`` is for errors and fingerprints."""

    codec: Codec

    REMEDY: ClassVar[str]
    """What says which part of a plan makes such a codec."""

    @property
    def WANTS_RESIDUAL(self) -> bool:  # noqa: N802 - as the base class has it
        """Whether the codec does."""
        return self.codec.WANTS_RESIDUAL

    def __str__(self) -> str:
        return f"{self.name}:{self.codec}"

    @classmethod
    def from_spec(cls, argument: str, options: dict[str, str]) -> Codec:  # noqa: ARG003
        """Raise ``SpecError``."""
        raise SpecError(cls.REMEDY)
