"""``gradwire codecs``: list the codecs that ``--codec`` accepts."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from gradwire import plugins
from gradwire.cli.parser import Parser
from gradwire.codecs import TABLE, class_of, parse
from gradwire.tables import Column, Table, show

SAMPLE = 1 << 16
COLUMNS = (
    Column.of_text("spec"), Column("max bits"), Column.of_text("largest error"), Column.of_text("source"),
)  # fmt: skip

NOTES = MappingProxyType(
    {
        "identity": ("exact", "the baseline"),
        "fp16": ("half an ulp of 11 bits", "IEEE 754 binary16"),
        "bf16": ("half an ulp of 8 bits", "bfloat16"),
        "inceptionn": ("2^-7 below 1", "INCEPTIONN, alg. 2 and 3"),
        "errbound": ("the bound, always", "gradwire"),
        "truncate": ("an ulp of the kept bits", "INCEPTIONN; Pipe-SGD +T"),
        "quantize": ("half a step of the block", "Pipe-SGD +Q"),
        "bfp": ("one unit of the block", "AI smart NIC, BFP16"),
        "bitpack": ("an ulp of the kept bytes", "A2DTWP, Bitpack"),
        "terngrad": ("largest magnitude", "TernGrad, unbiased"),
        "topk": ("largest dropped value", "top-k sparsification"),
        "lossless": ("exact", "Zstandard on byte planes"),
        "fp8": ("half an ulp of 4 bits", "FP8 E4M3, MX scales"),
        "ecsq": ("half a step of the block", "Gish and Pierce; rANS"),
    }
)
"""The error bound in words and the source of each codec; the classes' docstrings have the exact bounds."""


def table() -> Table:
    """Return the table of codecs: an example spec, the largest bits per value, error bound, and source.

    For a codec of another package, the source is the package, whose documentation has the bound.
    """
    rows = [_row(row.name, *NOTES[row.name]) for row in TABLE]
    others = plugins.names(plugins.CODECS)
    rows += [_row(name, "", plugins.origin(plugins.CODECS, name) or "") for name in others]
    return Table(COLUMNS, rows)


def _row(name: str, error: str, source: str) -> tuple[str, str, str, str]:
    spec = class_of(name).EXAMPLES[0]
    return spec, f"{8 * parse(spec).max_nbytes(SAMPLE) / SAMPLE:.2f}", error, source


def run(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = Parser(
        prog="gradwire codecs",
        usage="gradwire codecs",
        description="List the codecs: example, largest payload in bits per value, error, source.",
        epilog="example:\n  gradwire codecs",
    )
    parser.add_argument("-h", "--help", action="help", help="show this text")
    parser.parse_args(arguments)
    show(table())
