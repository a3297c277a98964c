"""The report's tables: every target's blocks, and the all-reduce and the codec beside the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from gradwire.gateware.blocks import BLOCKS
from gradwire.gateware.synthesis.report import Row
from gradwire.gateware.synthesis.targets import SEEDS, TARGETS
from gradwire.tables import Column, Table

PUBLISHED = MappingProxyType(
    {
        "all-reduce": ({"ALM": 2233, "M20K": 46, "DSP": 8}, "identity", ("ring-engine",)),
        "BFP": ({"ALM": 2857, "M20K": 120, "DSP": 0}, "bfp:7x16", ("bfp-compressor", "bfp-decompressor")),
    }
)
"""Ma and others, FPGA-based AI smart NICs (arXiv 2204.10943), table I, for Arria 10; and our counterparts."""
NOTES = (
    "Comparable: what the blocks do, at 256 bits, and the order of magnitude. Both are without network and "
    "host interfaces.",
    "Not comparable: the chips and the tools. Yosys has no Arria 10, so that Cyclone V stands in for it: an "
    "ALM has two ALUTs, and a block of its memory has half the bits of an M20K. An Arria 10 adds float32 in "
    "its DSPs, one adder in each; the adders here are logic, with subnormals, and work on every chip. The "
    "published figures include the memories for chunks, whose size the paper doesn't give.",
)  # fmt: skip


def tables(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables and paragraphs of a report."""
    parts: list[str | Table] = []
    for name, target in TARGETS.items():
        ours = [row for row in rows if row["target"] == name]
        if ours:
            head = f"{target.title}, words of {ours[0]['width']} bits"
            parts += [*([""] if parts else []), head, "", _table(ours)]
    if any("clock_mhz" in row for row in rows):
        parts += ["", f"The clock rate is the median of {len(SEEDS)} seeds of place and route without pins."]
    compared = list(_compared([row for row in rows if row["target"] == "intel"]))
    if compared:
        columns = (Column.of_text(""), Column("logic"), Column("memory"), Column("DSP"))
        parts += ["", "Beside the published smart NIC", "", Table(columns, compared)]
        for note in NOTES:
            parts += ["", note]
    return parts


def _table(rows: Sequence[Row]) -> Table:
    names = list(rows[0]["resources"])
    columns = [Column.of_text("block"), Column.of_text("codec"), *map(Column, names)]
    columns += [Column("clock", "MHz"), Column("rate", "Gbit/s")]
    return Table(
        columns,
        [
            (
                row["block"],
                row["codec"] or "",
                *(f"{row['resources'][name]:g}" for name in names),
                *_speed(row),
            )
            for row in rows
        ],
    )


def _speed(row: Row) -> tuple[str, str]:
    if "clock_mhz" not in row:
        return "", ""
    has_words = BLOCKS[row["block"]].has_width
    return f"{row['clock_mhz']:.1f}", f"{row['clock_mhz'] * row['width'] / 1000:.1f}" if has_words else ""


def _compared(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for name, (figures, codec, blocks) in PUBLISHED.items():
        ours = [row["resources"] for row in rows if row["block"] in blocks and row["codec"] == codec]
        if len(ours) == len(blocks):
            yield (f"published {name}, Arria 10", *(f"{count} {unit}" for unit, count in figures.items()))
            logic, memory, dsp = (sum(each[unit] for each in ours) for unit in ("ALUT", "M10K", "DSP"))
            yield (f"{' + '.join(blocks)}, Cyclone V", f"{logic:g} ALUT", f"{memory:g} M10K", f"{dsp:g} DSP")
