"""Codecs turn a chunk of float32 into a payload and back. Each has a row of TABLE, a file, and a card.

>>> from gradwire.codecs import parse
>>> parse("quantize:8")
Quantize(bits=8, block=1024)
>>> str(parse("quantize:8,block=1024"))
'quantize:8'
"""

from __future__ import annotations

import difflib
from typing import NamedTuple

from gradwire.codecs.base import Codec
from gradwire.codecs.bfp import Bfp
from gradwire.codecs.bitpack import BitPack
from gradwire.codecs.cast import Bf16, Fp16
from gradwire.codecs.ecsq import Ecsq
from gradwire.codecs.errbound import ErrBound
from gradwire.codecs.fp8 import Fp8
from gradwire.codecs.identity import Identity
from gradwire.codecs.inceptionn import Inceptionn
from gradwire.codecs.lossless import Lossless
from gradwire.codecs.quantize import Quantize
from gradwire.codecs.spec import split
from gradwire.codecs.terngrad import TernGrad
from gradwire.codecs.topk import TopK
from gradwire.codecs.truncate import Truncate
from gradwire.errors import SpecError, shown

__all__ = [
    "DEFAULT",
    "FREE_OF_SCALE",
    "TABLE",
    "Bf16",
    "Bfp",
    "BitPack",
    "Codec",
    "Ecsq",
    "ErrBound",
    "Fp8",
    "Fp16",
    "Identity",
    "Inceptionn",
    "Lossless",
    "Quantize",
    "Row",
    "TernGrad",
    "TopK",
    "Truncate",
    "codec_of",
    "parse",
]


class Row(NamedTuple):
    """A codec's row in the table: its name in specs, its number in frames, and its class."""

    name: str
    wire_id: int
    codec: type[Codec]


TABLE = (
    Row("identity", 0, Identity),
    Row("fp16", 1, Fp16),
    Row("bf16", 2, Bf16),
    Row("inceptionn", 3, Inceptionn),
    Row("errbound", 4, ErrBound),
    Row("truncate", 5, Truncate),
    Row("quantize", 6, Quantize),
    Row("bfp", 7, Bfp),
    Row("bitpack", 8, BitPack),
    Row("terngrad", 9, TernGrad),
    Row("topk", 10, TopK),
    Row("lossless", 11, Lossless),
    Row("fp8", 12, Fp8),
    Row("ecsq", 13, Ecsq),
)
"""All codecs. Wire ids are part of the protocol: they never change and are never reused."""
DEFAULT = "fp8"
"""Works at any scale of the gradients; docs/which_codec.md has the measured losses behind the choice."""
FREE_OF_SCALE = ("identity", "bf16", "fp8", "quantize:8", "bfp:7x16", "errbound:rel=0.05")
"""What a choice tries when nobody names codecs, in the order in which they win ties: those whose error is a
known share of the values, so that they need no knowledge of the gradients' scale. Left out are

- ``errbound`` with an absolute bound, which wants a bound that suits the gradients (and then is the best);
- ``fp16``, whose range ends at 65520 and at 6e-8; ``truncate:16``, which is bf16 without its rounding;
- ``ecsq``, whose step is a choice between bytes and loss;
- ``quantize:4``, ``terngrad`` and ``topk``, which need their losses fed back; ``lossless``, slower than most
  lines.
"""


def codec_of(codec: Codec | str | None, name: str = "codec") -> Codec | None:
    """Return a codec, given the codec or its spec; None for None.

    Raises ``SpecError``, whose message calls the argument ``name``.
    """
    if codec is None or isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        return parse(codec)
    raise SpecError(f"{name} must be a codec, its spec or None, but is {shown(codec)}")


def parse(spec: str) -> Codec:
    """Return the codec that a spec like ``quantize:8`` names. Raises ``SpecError``."""
    if not isinstance(spec, str):
        raise SpecError(f"a spec is a text like 'quantize:8', but this one is {shown(spec)}")
    name, argument, options = split(spec)
    classes = {row.name: row.codec for row in TABLE}
    if name not in classes:
        near = difflib.get_close_matches(name.lower(), classes, n=1)
        hint = f"did you mean {near[0]!r}? The codecs are" if near else "the codecs are"
        raise SpecError(f"no codec is named {shown(name)}; {hint} {', '.join(sorted(classes))}")
    return classes[name].from_spec(argument, options)
