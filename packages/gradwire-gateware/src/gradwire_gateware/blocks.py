"""The blocks by name, and how each is made; Amaranth is imported when one of them is."""

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
    """A kind of hardware: its purpose, module, codecs, and parameters."""

    summary: str
    module: str
    name: str
    codecs: tuple[str, ...] = ()
    has_width: bool = True
    parameters: tuple[str, ...] = ()

    @property
    def codec(self) -> str | None:
        """The first of the codecs, if there is one."""
        return self.codecs[0] if self.codecs else None


class Parameter(NamedTuple):
    """The limits and the default of a block's parameter."""

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
        **_both_ways("errbound", "ErrBound", "errbound.compressor", "errbound.decompressor", "chunk_words"),
        **_both_ways("quantize", "Quantize", "quantize.compressor", "quantize.decompressor", "chunk_words"),
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
        "nic": Block("both ways of a network card", "nic.card", "Card", _CARD, parameters=("mtu", "flows")),
        "distributor": Block(
            "packets of a wide stream to lanes", "lanes", "Distributor", parameters=("lanes", "chunk_words")
        ),
        "collector": Block(
            "packets of lanes to a wide stream", "lanes", "Collector", parameters=("lanes", "chunk_words")
        ),
        "skid-buffer": Block("two words between two blocks", "stream", "SkidBuffer"),
        "float-adder": Block("sums of float32", "adder", "FloatAdder", has_width=False),
    }
)


def build(name: str, codec: str | None, width: int, parameters: Mapping[str, int] = NO_PARAMETERS) -> Any:
    """Return a block as Amaranth's component. Raises ``SpecError`` and ``MissingPackageError``."""
    if name not in BLOCKS:
        raise SpecError(f"gateware has the blocks {', '.join(BLOCKS)}, but got {shown(name)}")
    block = BLOCKS[name]
    if width not in WIDTHS:
        raise SpecError(f"{name} has words of 256 or 512 bits, but got {width}; choose one of them")
    numbers = _numbers(name, block, parameters)
    given: list[Any] = []
    if block.codecs:
        parsed = _codec_of(name, block, codec, width)
        given.append(parsed)
        if block.name == "RingEngine":
            given = [Ring.of(parsed, numbers["ranks"], numbers["chunk_words"], width)]
            numbers = {}
    elif codec is not None:
        raise SpecError(f"{name} is the same for every codec, but got {shown(codec)}; leave the codec out")
    if block.has_width and block.name != "RingEngine":
        given.append(width)
    try:
        made = getattr(import_module(f"gradwire_gateware.{block.module}"), block.name)
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire_gateware needs the package amaranth, which does not load here ({error}); "
            f"{how_to_install('gateware')}",
            name="amaranth",
        ) from error
    return made(*given, **numbers)


def read_parameters(text: str) -> dict[str, int]:
    """Return the numbers of a list such as ``ranks=4,chunk_words=512``. Raises ``SpecError``."""
    numbers = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        number = parse_whole(value)
        if number is None:
            raise SpecError(
                f"parameters are a list such as ranks=4,chunk_words=512, but got {shown(part)}; "
                "write NAME=NUMBER"
            )
        numbers[name] = number
    return numbers


def _numbers(name: str, block: Block, given: Mapping[str, int]) -> dict[str, int]:
    """Return all parameters of a block, in its order."""
    for key, value in given.items():
        if key not in block.parameters:
            others = f"takes {', '.join(block.parameters)}" if block.parameters else "takes no parameters"
            raise SpecError(f"{name} {others}, but got {shown(key)}; leave it out")
        limits = PARAMETERS[key]
        if not limits.least <= value <= limits.most:
            raise SpecError(
                f"{name} takes {key} from {limits.least} to {limits.most}, but got {value}; choose another"
            )
    return {key: given.get(key, PARAMETERS[key].default) for key in block.parameters}


def _codec_of(name: str, block: Block, spec: str | None, width: int) -> Codec:
    """Return the codec that a block is made of. Raises ``SpecError``."""
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
