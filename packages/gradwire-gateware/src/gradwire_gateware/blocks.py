"""The blocks by name, and their construction. Only construction imports Amaranth."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from gradwire.codecs import TABLE, Bfp, Codec, parse
from gradwire.errors import MissingPackageError, SpecError, shown
from gradwire.units import parse_whole
from gradwire.version import how_to_install
from gradwire_gateware import WIDTHS
from gradwire_gateware.formats import BfpLayout
from gradwire_gateware.ring_routes import Ring

NO_PARAMETERS: Mapping[str, int] = MappingProxyType({})


class Block(NamedTuple):
    """A hardware block: its purpose, module, codecs, and parameters."""

    summary: str
    module: str
    name: str
    codecs: tuple[str, ...] = ()
    has_width: bool = True
    parameters: tuple[str, ...] = ()

    @property
    def codec(self) -> str | None:
        """The first of the block's codecs, or None."""
        return self.codecs[0] if self.codecs else None


class Parameter(NamedTuple):
    """A block's parameter: its default, limits, and meaning."""

    default: int
    least: int
    most: int
    meaning: str


PARAMETERS = MappingProxyType(
    {
        "ranks": Parameter(4, 2, 64, "engines in the ring"),
        "chunk_words": Parameter(512, 1, 16384, "words of a chunk"),
        "lanes": Parameter(4, 2, 16, "blocks side by side"),
        "mtu": Parameter(1500, 576, 9000, "bytes of the largest IP packet to compress"),
        "flows": Parameter(8, 1, 64, "connections to compress"),
    }
)


def _both_ways(codec: str, title: str, there: str, back: str, *parameters: str) -> dict[str, Block]:
    """Return a codec's compressor and decompressor, whose classes begin with ``title``."""
    return {
        f"{codec}-{kind}": Block(summary, module, f"{title}{kind.title()}", (codec,), parameters=parameters)
        for kind, summary, module in (
            ("compressor", "float32 to payloads", there),
            ("decompressor", "payloads to float32", back),
        )
    }


_CARD = ("inceptionn",)
BLOCKS = MappingProxyType(
    {
        **_both_ways("inceptionn", "Inceptionn", "inceptionn.compressor", "inceptionn.decompressor"),
        **_both_ways("bfp", "Bfp", "bfp", "bfp"),
        **_both_ways("errbound", "ErrBound", "errbound.coder", "errbound.coder", "chunk_words"),
        **_both_ways("quantize", "Quantize", "quantize.coder", "quantize.coder", "chunk_words"),
        "ring-engine": Block(
            "all-reduces float32 with two neighbours",
            "ring",
            "RingEngine",
            ("bfp", "inceptionn", "identity"),
            parameters=("ranks", "chunk_words"),
        ),
        "nic-transmitter": Block(
            "Ethernet frames to the link",
            "nic.transmitter",
            "Transmitter",
            _CARD,
            parameters=("mtu", "flows"),
        ),
        "nic-receiver": Block(
            "Ethernet frames from the link", "nic.receiver", "Receiver", _CARD, parameters=("mtu",)
        ),
        "nic": Block("both directions of a NIC", "nic.card", "Card", _CARD, parameters=("mtu", "flows")),
        "distributor": Block(
            "packets of a wide stream to lanes", "lanes", "Distributor", parameters=("lanes", "chunk_words")
        ),
        "collector": Block(
            "packets of lanes to a wide stream", "lanes", "Collector", parameters=("lanes", "chunk_words")
        ),
        "skid-buffer": Block("two words between two blocks", "stream", "SkidBuffer"),
        "float-adder": Block("sums of float32", "ring", "FloatAdder", has_width=False),
    }
)


def build(name: str, codec: str | None, width: int, parameters: Mapping[str, int] = NO_PARAMETERS) -> Any:
    """Return a block as an Amaranth component. Raises ``SpecError`` and ``MissingPackageError``."""
    if name not in BLOCKS:
        raise SpecError(f"expected one of the blocks {', '.join(BLOCKS)}, got {shown(name)}; choose one")
    block = BLOCKS[name]
    if width not in WIDTHS:
        raise SpecError(f"{name}: expected words of 256 or 512 bits, got {width}; choose 256 or 512")
    numbers = _numbers(name, block, parameters)
    given: list[Any] = []
    if block.codecs:
        parsed = _codec_of(name, block, codec, width)
        given.append(parsed)
        if block.name == "RingEngine":
            given = [Ring.of(parsed, numbers["ranks"], numbers["chunk_words"], width)]
            numbers = {}
    elif codec is not None:
        raise SpecError(f"{name}: expected no codec, got {shown(codec)}; omit the codec")
    if block.has_width and block.name != "RingEngine":
        given.append(width)
    try:
        made = getattr(import_module(f"gradwire_gateware.{block.module}"), block.name)
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire_gateware needs the package amaranth, which cannot be imported ({error}); "
            f"{how_to_install('gateware')}",
            name="amaranth",
        ) from error
    return made(*given, **numbers)


def read_parameters(text: str) -> dict[str, int]:
    """Parse a list such as ``ranks=4,chunk_words=512``. Raises ``SpecError``."""
    numbers = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        number = parse_whole(value)
        if number is None:
            raise SpecError(
                f"expected parameters such as ranks=4,chunk_words=512, got {shown(part)}; write NAME=NUMBER"
            )
        numbers[name] = number
    return numbers


def _numbers(name: str, block: Block, given: Mapping[str, int]) -> dict[str, int]:
    """Return all parameters of a block, with defaults. Raises ``SpecError``."""
    for key, value in given.items():
        if key not in block.parameters:
            others = f"only {', '.join(block.parameters)}" if block.parameters else "no parameters"
            raise SpecError(f"{name}: expected {others}, got {shown(key)}; omit {key}")
        limits = PARAMETERS[key]
        if not limits.least <= value <= limits.most:
            raise SpecError(
                f"{name}: expected {key} from {limits.least} to {limits.most}, got {value}; pass e.g. "
                f"{key}={limits.default}"
            )
    return {key: given.get(key, PARAMETERS[key].default) for key in block.parameters}


def _codec_of(name: str, block: Block, spec: str | None, width: int) -> Codec:
    """Return the codec of a block. Raises ``SpecError``."""
    kinds = tuple(row.codec for row in TABLE if row.name in block.codecs)
    example = next(row.codec.EXAMPLES[0] for row in TABLE if row.name == block.codec)
    if spec is None:
        raise SpecError(f"{name}: expected a codec, got none; for example, choose {example!r}")
    codec = parse(spec)
    if not isinstance(codec, kinds):
        expected = " or ".join(block.codecs)
        raise SpecError(
            f"{name}: expected a codec of {expected}, got {shown(spec)}; for example, choose {example!r}"
        )
    if isinstance(codec, Bfp):
        BfpLayout.of(codec, width)
    return codec
