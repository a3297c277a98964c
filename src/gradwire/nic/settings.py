"""What a NIC compresses and how, and the faults that it makes on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs import Codec, parse
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.wrappers.projected import offloadable
from gradwire.errors import SpecError
from gradwire.wire import TOS

_DSCP = 0xFC


@dataclass(frozen=True, slots=True)
class Settings:
    """The codec and the type of service of marked streams, and faults on the way to the link.

    Parameters
    ----------
    codec
        A codec whose ``is_offloadable`` is true, or its spec.
    tos
        The type of service of marked packets; its two lowest bits, which routers change, don't count.
    merge
        Whether a compressed packet may stand for several segments. Both NICs need the same setting.
    drop
        The share of the frames that get lost.
    reorder
        The share of the frames that wait for 2 ms, so that others overtake them.
    delay_s
        What every frame waits.
    seed
        Of the choice of those frames.

    Raises
    ------
    SpecError
        For a codec that a NIC can't apply, and for a number that makes no sense.
    """

    codec: Codec | str
    tos: int = TOS
    merge: bool = True
    drop: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_offloadable(self.codec)
        if not (0 <= self.tos <= 0xFF and self.tos & _DSCP):
            raise SpecError(
                f"a NIC compresses what a type of service from 0x04 to 0xff marks, but it is {self.tos:#x}, "
                "which ordinary traffic has, or no byte; name another one, as 0x28"
            )
        for name, share in (("drop", self.drop), ("reorder", self.reorder)):
            if not 0 <= share < 1:
                raise SpecError(f"the share of frames to {name} is 0 or more and below 1, but is {share:g}")
        if not 0 <= self.delay_s <= 10:
            raise SpecError(f"a NIC delays frames by 0 to 10 s, but {self.delay_s:g} s were asked for")
        if not 0 <= self.seed < 1 << 64:
            raise SpecError(f"a seed is 0 or more and below 2^64, but is {self.seed}")

    @property
    def kernel(self) -> tuple[str, int, int, int]:
        """The compiled format, its two parameters, and the codec's wire id, as ``_core`` takes them."""
        codec = check_offloadable(self.codec)
        name, params = codec.compiled
        first, second = (*params, 0)[:2]
        return name, first, second, codec.wire_id


def check_offloadable(codec: Codec | str) -> NativeCodec:
    """Return the codec that a NIC can apply. Raises ``SpecError`` for others."""
    return offloadable(parse(codec) if isinstance(codec, str) else codec)
