"""``gradwire codecs``: list the codecs that ``--codec`` accepts, or show the card of one codec."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gradwire import plugins
from gradwire.cli.parser import Parser, add_usual
from gradwire.cli.progress import Show, measuring
from gradwire.codecs import TABLE, Codec, class_of, parse
from gradwire.tables import Column, Table, show
from gradwire.version import import_problem

SAMPLE = 1 << 16
"""The number of values for which the largest payload size is shown."""
MEASURED = 1 << 17
"""The number of values in a measured chunk: all codecs together take about a second."""
REPEATS = 3
_LEAST_S = 1e-12
"""The minimum time per value in seconds, because noise may make a codec seem faster than an empty call."""
COLUMNS = (
    Column.of_text("spec"),
    *(Column("bits"), Column("max bits"), Column("encode", "GB/s"), Column("add", "GB/s")),
    *(Column.of_text("largest error"), Column.of_text("source")),
)  # fmt: skip


class CodecNote(NamedTuple):
    """A note on a codec, in words."""

    error: str
    source: str
    use: str  # when to use the codec


_NOTES = {
    "identity": ("exact", "the baseline", "as the baseline, and where the network is fast enough"),
    "fp16": ("half an ulp of 11 bits", "IEEE 754 binary16", "for values from 2^-14 to 65504"),
    "bf16": ("half an ulp of 8 bits", "bfloat16", "if half the bytes are enough: any scale, fast"),
    "inceptionn": ("2^-7 below 1", "INCEPTIONN, alg. 2 and 3", "with hardware of this format"),
    "errbound": (
        "the bound, always",
        "gradwire",
        "if you know the error that the model tolerates; or with rel=0.05",
    ),
    "truncate": ("an ulp of the kept bits", "INCEPTIONN; Pipe-SGD +T", "with hardware of this format"),
    "quantize": ("half a step of the block", "Pipe-SGD +Q", "if neighbouring values have a similar scale"),
    "bfp": ("one unit of the block", "AI smart NIC, BFP16", "with hardware of this format"),
    "bitpack": ("an ulp of the kept bytes", "A2DTWP, Bitpack", "for weights, not for gradients"),
    "terngrad": ("largest magnitude", "TernGrad, unbiased", "to compare with the literature"),
    "topk": ("largest dropped value", "top-k sparsification", "if few values matter, with a residual"),
    "lossless": ("exact", "Zstandard on byte planes", "on links that are slower than its encoder"),
    "fp8": ("half an ulp of 4 bits", "FP8 E4M3, MX scales", "by default: any scale, with any optimizer"),
    "ecsq": ("half a step of the block", "Gish and Pierce; rANS", "for the fewest bytes per error"),
}
NOTES = MappingProxyType({name: CodecNote(*words) for name, words in _NOTES.items()})
"""Notes on this package's codecs. The docstrings of the codecs' classes state the exact bounds."""


class Speed(NamedTuple):
    """A codec's typical bits per value, and its speeds on this machine in bytes of floats per second."""

    bits: float
    encode: float
    decode_add: float


def run(arguments: Sequence[str]) -> None:
    """Print the table of codecs, or one codec's card. Raises ``SpecError`` for an unknown codec."""
    parser = Parser(
        prog="gradwire codecs",
        usage="gradwire codecs [SPEC] [options]",
        description="List the codecs with their typical and largest payloads in bits per value, the\n"
        "speed here, error, and source; or show the card of one codec.",
        epilog="example:\n  gradwire codecs ecsq:0.25",
    )
    parser.add_argument(
        "spec", metavar="SPEC", nargs="?", help="show the card of this codec (default: a table of all codecs)"
    )
    parser.add_argument("--no-measure", action="store_true", help="omit typical bits and speeds")
    add_usual(parser)
    words = parser.parse_args(arguments)
    specs = specs_of_all() if words.spec is None else [str(parse(words.spec))]
    problem = "" if words.no_measure else import_problem("torch")
    speeds, missing = dict[str, Speed](), dict[str, ImportError]()
    if not words.no_measure and not problem:
        with measuring(words.quiet) as progress:
            speeds = dict(measure(specs, progress, missing))
    if words.spec is None:
        show(table(speeds), *(["", _LEGEND] if speeds else []))
    else:
        show(*card(parse(words.spec), speeds.get(specs[0])))
    if problem:
        show("", f"Typical bits and speeds need torch, which cannot be imported here ({problem}).")
    for spec, error in missing.items():
        show("", f"{spec} was not measured: {error}")


def specs_of_all() -> list[str]:
    """Return one example spec for each codec of this and other packages."""
    names = [*(row.name for row in TABLE), *plugins.names(plugins.CODECS)]
    return [class_of(name).EXAMPLES[0] for name in names]


def measure(
    specs: Sequence[str], progress: Show, missing: dict[str, ImportError]
) -> Iterator[tuple[str, Speed]]:
    """Yield each codec's speed for gradient-like values; add codecs without their package to ``missing``."""
    from gradwire.planner.calibration import synthetic_gradients  # imports torch
    from gradwire.timing.calibrate import codec_cost

    sample = synthetic_gradients(MEASURED)[:1]
    for done, spec in enumerate(specs):
        progress(done, len(specs), spec)
        try:
            (point,) = codec_cost(parse(spec), sample, 1, 4 * MEASURED, repeats=REPEATS).points
        except ImportError as error:
            missing[spec] = error
            continue
        speeds = (4 / max(each, _LEAST_S) for each in (point.encode_s, point.decode_add_s))
        yield spec, Speed(8 * point.nbytes, *speeds)


def table(speeds: Mapping[str, Speed] = MappingProxyType({})) -> Table:
    """Return the table of codecs: example spec, sizes, error bound, and speeds or, without them, source."""
    return Table(COLUMNS, [_row(spec, speeds.get(spec)) for spec in specs_of_all()])


_LEGEND = (
    "bits: payload bits per value, typical (for Laplace-distributed values of scale 0.001, which matters "
    "for absolute bounds) and maximum. encode, add: speed of encoding, and of decoding and adding, in "
    "bytes of float32 on this machine. For one codec's card, run gradwire codecs SPEC."
)


def _row(spec: str, speed: Speed | None) -> tuple[str, ...]:
    codec = parse(spec)
    note = note_of(codec)
    measured = ("", "", "") if speed is None else _figures(speed)
    return spec, measured[0], _most_bits(codec), *measured[1:], note.error, "" if speed else note.source


def _figures(speed: Speed) -> tuple[str, str, str]:
    return f"{speed.bits:.2f}", f"{speed.encode / 1e9:.1f}", f"{speed.decode_add / 1e9:.1f}"


def _most_bits(codec: Codec) -> str:
    return f"{8 * codec.max_nbytes(SAMPLE) / SAMPLE:.2f}"


def note_of(codec: Codec) -> CodecNote:
    """Return the note on a codec. For a codec of another package, the note's source is the package."""
    own = NOTES.get(codec.name)
    return CodecNote("", plugins.origin(plugins.CODECS, codec.name) or "", "") if own is None else own


# The card of one codec: its docstring and its measurements.


def card(codec: Codec, speed: Speed | None) -> list[str | Table]:
    """Return the card of a codec: its description, formula, bound, size, and speed, and when to use it."""
    note, bits = note_of(codec), f"{_most_bits(codec)} at most"
    page = f"docs/codecs/{codec.name}.md" if codec.name in NOTES else f"in the documentation of {note.source}"
    speeds = ""
    if speed is not None:
        typical, encode, add = _figures(speed)
        bits = f"{typical} typically, {bits}"
        speeds = f"{encode} GB/s of float32 to encode, {add} to decode and add"
    rows = [
        ("use it", note.use),
        ("largest error", note.error),
        ("bits per value", bits),
        ("speed here", speeds),
        ("residual", "needed: attach keeps residuals" if codec.WANTS_RESIDUAL else "not needed"),
        ("page", page),
    ]
    blank = (Column.of_text(""), Column.of_text(""))
    return [f"{codec}", "", Table(blank, [row for row in rows if row[1]]), *_paragraphs(type(codec))]


def _paragraphs(kind: type[Codec]) -> Iterator[str]:
    """Yield the paragraphs of a codec's docstring, up to its parameters, with empty lines between them."""
    text = re.split(r"\n(?:Parameters|Attributes|Examples)\n-+\n", inspect.getdoc(kind) or "")[0]
    for paragraph in text.split("\n\n"):
        for part in re.split(r"(?<=\.)\s+(?=(?:Non-finite values|Ratio|Source):)", paragraph.strip()):
            yield ""
            yield " ".join(part.replace("``", "").split())
