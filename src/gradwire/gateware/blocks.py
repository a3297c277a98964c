"""The blocks by name, and how each is made; Amaranth is imported when one of them is."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from gradwire.codecs import TABLE, Bfp, parse
from gradwire.errors import MissingPackageError, SpecError, shown
from gradwire.gateware.bfp_format import Layout
from gradwire.gateware.words import WIDTHS
from gradwire.version import how_to_install


class Block(NamedTuple):
    """A kind of hardware: what it does, where it is described, and of which codec it is."""

    summary: str
    module: str
    name: str
    codec: str | None
    has_width: bool = True


BLOCKS = MappingProxyType(
    {
        "inceptionn-compressor": Block(
            "float32 to payloads", "inceptionn_compressor", "InceptionnCompressor", "inceptionn"
        ),
        "inceptionn-decompressor": Block(
            "payloads to float32", "inceptionn_decompressor", "InceptionnDecompressor", "inceptionn"
        ),
        "bfp-compressor": Block("float32 to payloads", "bfp_compressor", "BfpCompressor", "bfp"),
        "bfp-decompressor": Block("payloads to float32", "bfp_decompressor", "BfpDecompressor", "bfp"),
        "skid-buffer": Block("two words between two blocks", "stream", "SkidBuffer", None),
        "float-adder": Block("sums of float32", "adder", "FloatAdder", None, has_width=False),
    }
)


def build(name: str, codec: str | None, width: int) -> Any:
    """Return a block as Amaranth's component. Raises ``SpecError`` and ``MissingPackageError``."""
    if name not in BLOCKS:
        raise SpecError(f"gateware has the blocks {', '.join(BLOCKS)}, but got {shown(name)}")
    block = BLOCKS[name]
    if width not in WIDTHS:
        raise SpecError(f"{name} has words of 256 or 512 bits, but got {width}; choose one of them")
    given = _codec_of(name, block, codec, width)
    try:
        made = getattr(import_module(f"gradwire.gateware.{block.module}"), block.name)
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.gateware needs the package amaranth, which does not load here ({error}); "
            f"{how_to_install('gateware')}",
            name="amaranth",
        ) from error
    return made(*given, *([width] if block.has_width else []))


def _codec_of(name: str, block: Block, spec: str | None, width: int) -> list[Any]:
    """Return the codec that a block is made of, if it is made of one. Raises ``SpecError``."""
    if block.codec is None:
        if spec is not None:
            raise SpecError(f"{name} is the same for every codec, but got {shown(spec)}; leave the codec out")
        return []
    kind = next(row.codec for row in TABLE if row.name == block.codec)
    example = kind.EXAMPLES[0]
    if spec is None:
        raise SpecError(f"{name} wants a codec; for example, choose {example!r}")
    codec = parse(spec)
    if not isinstance(codec, kind):
        raise SpecError(
            f"{name} wants a codec of {block.codec}, but got {shown(spec)}; for example, choose {example!r}"
        )
    if isinstance(codec, Bfp):
        Layout.of(codec, width)
    return [codec]
