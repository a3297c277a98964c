"""Entropy-coded uniform scalar quantisation by blocks."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gradwire.codecs.base import largest_rms
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader, error, is_real, is_whole, join, write_real
from gradwire.deferred import torch

_BLOCK = 1024
_STEP_EXPECTED = "a step of 2^-5 to 4 root mean squares"
_SUM_EXPECTED = "a step for sums from 2^-5 to the first step"
_BLOCK_EXPECTED = "a block that is a power of two from 64 to 65536"
_EXAMPLE = "ecsq:0.5,block=1024"


@dataclass(frozen=True)
class Ecsq(NativeCodec):
    """Entropy-coded scalar quantisation: multiples of a step size, with few bits for frequent multiples.

    Formula: scale = step (1 - 2^-8) RMS of the block, truncated to a float of 8 significant bits and at most
    2^127; q = round_half_even(x / scale); y = q scale, within the range of floats. q is not clipped:
    outliers keep the bound.

    Payload: 4 bytes for the size of each section, then the sections. Fewer than 2^15 values are one section;
    otherwise, there are 2 ceil(n / 2^18) of equal size, rounded up to whole blocks (fewer, if blocks are
    large). A section has the sizes of all its blocks of symbols except the last, 4 bytes each; the low bytes
    of the scales; the blocks of symbols. Each block of values has one scale of two bytes, the upper half of a
    float32. The first block of symbols has the high bytes of the scales; the second has q from -7 to 7 as two
    signed nibbles per byte, low nibble first, unused nibble 0, and -8 for an escape; the third and fourth
    have the low and high bytes of the escapes, 2 (|q| - 8), plus 1 if q is negative. ``gradwire.entropy``
    codes each block of symbols with its own table; the second block's table may contain the frequencies of
    nibbles instead of bytes.

    With a foot, values whose q is 0 keep a sign, an exponent, and one mantissa bit, down to 2^-16 of the
    scale: their relative error is at most a fifth. Smaller values, below 7/8 of 2^-16, become 0. One more
    block of symbols contains a byte for each of these values: 0 for 0, and 1 + 2d, plus 1 for a negative
    value, for the float that is d places below 1/2 among 1/2, 3/8, 1/4, 3/16 .... Blocks with a scale below
    2^-110 have no foot.

    With ``sum``, finished sums are encoded with that step size, and partial sums and gradients, whose errors
    average out, with ``step``. The payload holds scales, so the decoder needs no step size.

    Bound: step / 2 RMS of the block, plus 2^-112 for blocks whose scale would be subnormal, which are sent as
    zeros; ``bound`` returns the largest. Non-finite values: any NaN or infinity turns its block into NaN (the
    scale is NaN), or the whole chunk if that is shorter; other blocks are unaffected. Ratio: 8 for gradients
    at step size 0.25, 10 at 0.5, 15 at 1; 1.6 at worst. Source: Gish and Pierce, "Asymptotically Efficient
    Quantizing" (IEEE Trans. Information Theory, 1968): at these rates, uniform steps and an entropy coder are
    within a quarter of a bit per value of any quantiser. The entropy coder is rANS (Duda, arXiv 1311.2540,
    2013); blocks and layout are gradwire's.

    Parameters
    ----------
    step
        The step size relative to each block's root mean square, from 2^-5 to 4.
    block
        The number of values that share a scale: a power of two from 64 to 65536.
    foot
        Whether values of less than half the step size keep an approximate value instead of becoming 0.
    sum
        The step size for finished sums (``of_sums``), at most ``step``; by default, ``step``.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, -1.0, 0.25, 0.0])
    >>> y = torch.empty(4)
    >>> codec = Ecsq(0.5)
    >>> codec.decode(codec.encode(x), y)
    >>> y.tolist()  # RMS 0.7181, scale 0.357421875
    [1.072265625, -1.072265625, 0.357421875, 0.0]
    """

    step: float
    block: int = _BLOCK
    foot: bool = False
    sum: float | None = None

    name = "ecsq"
    wire_id = 13
    EXAMPLES = (
        "ecsq:0.5",
        "ecsq:1",
        "ecsq:4,block=64",
        "ecsq:0.03125,block=65536",
        "ecsq:0.25,foot",
        "ecsq:4,block=64,foot",
    )
    ON_CUDA = False
    _format = "ecsq"

    def __post_init__(self) -> None:
        if not is_real(self.step, 2.0**-5, 4.0):
            raise error(self.name, _STEP_EXPECTED, self.step, _EXAMPLE)
        if not is_whole(self.block, 64, 65536) or self.block.bit_count() != 1:
            raise error(self.name, _BLOCK_EXPECTED, self.block, _EXAMPLE)
        if self.sum is not None and not is_real(self.sum, 2.0**-5, self.step):
            raise error(self.name, _SUM_EXPECTED, self.sum, "ecsq:0.5,sum=0.25")
        if not isinstance(self.foot, bool):
            raise error(self.name, "True or False for foot", self.foot, "ecsq:0.25,foot")

    @property
    def _params(self) -> tuple[int, ...]:
        return int.from_bytes(struct.pack("<f", self.step), "little"), self.block, int(self.foot)

    def __str__(self) -> str:
        block = "" if self.block == _BLOCK else f"block={self.block}"
        of_sums = "" if self.sum is None else f"sum={write_real(self.sum)}"
        return join(self.name, write_real(self.step), block, "foot" if self.foot else "", of_sums)

    @property
    def of_sums(self) -> Ecsq:
        """The codec with the step size for finished sums."""
        return self if self.sum is None else Ecsq(self.sum, self.block, self.foot)

    @property
    def parameter_unit(self) -> int:
        """The block size. Padding to it costs little, because zeros are frequent and take few bits."""
        return self.block

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[float, int, bool, float | None]:
        reader.example = _EXAMPLE
        step = reader.real(_STEP_EXPECTED, reader.argument(_STEP_EXPECTED))
        block, foot, of_sums = reader.option("block"), reader.flag("foot"), reader.option("sum")
        return (
            step,
            _BLOCK if block is None else reader.whole(_BLOCK_EXPECTED, block),
            foot,
            None if of_sums is None else reader.real(_SUM_EXPECTED, of_sums),
        )

    def bound(self, x: torch.Tensor) -> float:
        """Return half the step size of the block with the largest root mean square."""
        rms = largest_rms(x, self.block)
        return 0.5 * self.step * rms + 2.0**-112 if rms else 0.0
