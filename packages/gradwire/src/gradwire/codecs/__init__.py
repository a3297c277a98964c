"""Codecs, which encode chunks of float32 as payloads, and decode payloads.

Each codec has a row in TABLE, a module, and a card in docs/codecs. A class is loaded on first use. Other
packages provide codecs as entry points (``gradwire.plugins``).

>>> from gradwire.codecs import parse
>>> parse("quantize:8")
Quantize(bits=8, block=1024)
>>> str(parse("quantize:8,block=1024"))
'quantize:8'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from gradwire import plugins
from gradwire.codecs.base import Codec
from gradwire.codecs.spec import is_whole, split
from gradwire.errors import SpecError, shown, suggestion

if TYPE_CHECKING:
    from gradwire.codecs.blocks import Bfp, Fp8
    from gradwire.codecs.ecsq import Ecsq
    from gradwire.codecs.errbound import ErrBound
    from gradwire.codecs.floats import Bf16, Fp16, Identity
    from gradwire.codecs.inceptionn import Inceptionn
    from gradwire.codecs.lossless import Lossless
    from gradwire.codecs.quantize import Quantize, TernGrad
    from gradwire.codecs.topk import TopK
    from gradwire.codecs.truncate import BitPack, Truncate

__all__ = [
    "DEFAULT_CODEC",
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
    """A codec's row in the table: its name in specs, its wire id in frames, and ``module:class``."""

    name: str
    wire_id: int
    where: str

    @property
    def codec(self) -> type[Codec]:
        """The codec's class, loaded on first use."""
        found: type[Codec] = plugins.resolve(f"gradwire.codecs.{self.where}")
        return found


TABLE = (
    Row("identity", 0, "floats:Identity"),
    Row("fp16", 1, "floats:Fp16"),
    Row("bf16", 2, "floats:Bf16"),
    Row("inceptionn", 3, "inceptionn:Inceptionn"),
    Row("errbound", 4, "errbound:ErrBound"),
    Row("truncate", 5, "truncate:Truncate"),
    Row("quantize", 6, "quantize:Quantize"),
    Row("bfp", 7, "blocks:Bfp"),
    Row("bitpack", 8, "truncate:BitPack"),
    Row("terngrad", 9, "quantize:TernGrad"),
    Row("topk", 10, "topk:TopK"),
    Row("lossless", 11, "lossless:Lossless"),
    Row("fp8", 12, "blocks:Fp8"),
    Row("ecsq", 13, "ecsq:Ecsq"),
)
"""The codecs of this package. Wire ids are part of the protocol: they never change and are never reused."""
DEFAULT_CODEC = "fp8"
"""The default codec, which works at any gradient scale. docs/which_codec.md shows the measurements."""
FREE_OF_SCALE = ("identity", "bf16", "fp8", "quantize:8", "bfp:7x16", "errbound:rel=0.05")
"""The codecs that the planner tries by default. Among equally fast codecs, the planner chooses the first.

These codecs have errors relative to the values, so they suit any scale of gradients. The other codecs are

- ``errbound`` with an absolute bound, which is best if the bound matches the gradients' scale;
- ``fp16``, whose range is 6e-8 to 65520; ``truncate:16``, which is bf16 without its rounding;
- ``ecsq``, whose step size trades bytes for error;
- ``quantize:4``, ``terngrad`` and ``topk``, which need error feedback; ``lossless``, which is slower than
  most links.
"""


def codec_of(codec: Codec | str | None, name: str = "codec") -> Codec | None:
    """Return ``codec``, after parsing it if it is a spec; None stays None.

    Raises ``SpecError``, whose message names the argument ``name``.
    """
    if codec is None or isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        try:
            return parse(codec)
        except SpecError as error:
            raise SpecError(f"{name}: {error}") from error
    raise SpecError(
        f"{name}: expected a codec, its spec or None, got {shown(codec)}; pass a spec such as 'fp8'"
    )


def parse(spec: str) -> Codec:
    """Return the codec of a spec such as ``quantize:8``. Raises ``SpecError``."""
    if not isinstance(spec, str):
        raise SpecError(f"expected a spec such as 'quantize:8', got {shown(spec)}; pass a string")
    name, argument, options = split(spec)
    return class_of(name).from_spec(argument, options)


def known_names() -> set[str]:
    """Return the names of the codecs of all installed packages."""
    return {*(row.name for row in TABLE), *plugins.names(plugins.CODECS)}


def class_of(name: str) -> type[Codec]:
    """Return the class of the codec ``name`` from any installed package. Raises ``SpecError``."""
    row = next((row for row in TABLE if row.name == name), None)
    if row is not None:
        return row.codec
    found = plugins.entry(plugins.CODECS, name)
    if found is not None:
        return _checked(name, found)
    known = sorted(known_names())
    raise SpecError(
        f"unknown codec {shown(name)}{suggestion(name, known)}; choose one of {', '.join(known)}, or install "
        "the package that provides the codec"
    )


LEAST_WIRE_ID = 132
"""The smallest wire id of other packages' codecs: smaller ids are for ``TABLE``, wrappers and last frames."""


def _checked(name: str, found: object) -> type[Codec]:
    """Return another package's codec class. Raises ``SpecError`` unless its name and wire id are valid."""
    whose = f"codec {name} of package {plugins.origin(plugins.CODECS, name)}"
    if not isinstance(found, type) or not issubclass(found, Codec) or getattr(found, "name", "") != name:
        raise SpecError(
            f"expected a subclass of gradwire.codecs.Codec with name = {name!r} for {whose}, "
            f"got {shown(found)}; fix the package's entry point or its class"
        )
    wire_id = getattr(found, "wire_id", None)
    if not is_whole(wire_id, LEAST_WIRE_ID, 255):
        raise SpecError(
            f"expected a wire id from {LEAST_WIRE_ID} to 255 for {whose}, got {shown(wire_id)}; "
            f"change {found.__name__}.wire_id"
        )
    return found


def origins(encodings: Iterable[Codec]) -> dict[str, str]:
    """Return the packages of third-party codecs in a plan's encodings, the same on all ranks."""
    used = {codec.name for each in encodings for codec in _unwrapped(each)}
    return plugins.origins(plugins.CODECS, "codec", sorted(used - {row.name for row in TABLE}))


def _unwrapped(codec: Codec) -> Iterator[Codec]:
    """Yield a codec and the codecs that it wraps (``gradwire.codecs.wrappers``)."""
    yield codec
    inside = getattr(codec, "codec", None)
    if isinstance(inside, Codec):
        yield from _unwrapped(inside)


def __getattr__(name: str) -> object:
    for row in TABLE:
        if row.where.endswith(f":{name}"):
            value: object = row.codec
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
