"""The share of the link rate that an exchange uses, with and without compression.

A codec of ratio r is compared with r times the speed of the uncompressed ring.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.cli.lists import codec_specs, listed
from gradwire.codecs import parse
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.units import exact_size
from gradwire_lab.columns import Columns, table_of, text_of
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    Cell,
    CheckedOptions,
    Experiment,
    Row,
    cells_of,
    option,
    sizes_between_commas,
)
from gradwire_lab.experiments.hosts import check_networks, measured_by

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire_lab.experiments.hosts.ranks import Ranks

BASELINE = "identity"
SEGMENTS = (1 << 19, 1 << 20, 1 << 21)
BUDGET_S = 2.0
"""The time budget of a cell's 3 to 9 exchanges, in seconds."""
COLUMNS: Columns[Row] = (
    (Column("rate"), text_of("rate")),
    (Column("size"), lambda row: exact_size(row["nbytes"])),
    (Column.of_text("codec"), text_of("codec")),
    (Column("segment"), lambda row: exact_size(row["segment_nbytes"])),
    (Column("busbw", "MB/s"), lambda row: figure(row["busbw_nbytes_per_s"] / 1e6)),
    (Column("of line", "%"), lambda row: f"{100 * row['busbw_nbytes_per_s'] / row['line_nbytes_per_s']:.1f}"),
    (Column("ratio"), lambda row: f"{row['ratio']:.2f}"),
    (Column("speed-up"), lambda row: f"{row['speed_up']:.2f}x"),
    (Column("of ratio", "%"), lambda row: f"{100 * row['speed_up'] / row['ratio']:.0f}"),
)
NOTE = (
    "The fastest segment size of each codec. Busbw: size / seconds * 2 (p - 1) / p. Of line: busbw as a "
    f"share of the link's measured rate. Speed-up: over {BASELINE}. Of ratio: the speed-up as a share of "
    "the ratio."
)


def _codecs(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((BASELINE, *codec_specs(text))))


@dataclass(frozen=True)
class LineShareOptions(CheckedOptions):
    """The hosts, rates, bucket sizes, and codecs. All combinations are measured with each segment size."""

    hosts: int = option(4, "number of hosts")
    rates: tuple[str, ...] = option(
        ("100mbit", "200mbit", "500mbit", "1gbit", "2gbit"), "link rates to compare"
    )
    sizes: tuple[int, ...] = option(
        (16 << 20, 64 << 20), "sizes, of buckets", shown="16MiB,64MiB", read=sizes_between_commas
    )
    codecs: tuple[str, ...] = option(
        (BASELINE, "errbound:2^-10", "quantize:8", "bf16"), f"codecs, besides {BASELINE}", read=_codecs
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(self.hosts, rate) for rate in self.rates])
        listed(self.sizes)


def cells(options: LineShareOptions) -> list[Cell]:
    """Return a cell for each rate, size, codec, and segment."""
    found = cells_of({"hosts": options.hosts}, rate=options.rates, nbytes=options.sizes, codec=options.codecs)
    return [{**cell, "segment_nbytes": segment} for cell in found for segment in SEGMENTS]


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Measure the cells of one network, as one of its ranks."""
    line = ranks.line()
    for cell in cells:
        count = cell["nbytes"] // FLOAT_NBYTES
        plan = Plan(parse(cell["codec"]), "ring", cell["segment_nbytes"])
        seconds = statistics.median(ranks.time_s(plan, count, BUDGET_S, least=3, most=9))
        ratio = ranks.ratio(plan, count)
        figures = {
            "measured_s": seconds,
            "ratio": ratio,
            "busbw_nbytes_per_s": cell["nbytes"] / seconds * 2 * (ranks.world - 1) / ranks.world,
            "line_nbytes_per_s": line.nbytes_per_s,
        }
        ranks.report(cell, figures)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a row for each rate, size, and codec, with its fastest segment."""
    best: dict[tuple[str, int, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["measured_s"], reverse=True):
        best[row["rate"], row["nbytes"], row["codec"]] = row
    found = []
    for rate, nbytes, codec in dict.fromkeys((row["rate"], row["nbytes"], row["codec"]) for row in rows):
        row = best[rate, nbytes, codec]
        found.append({**row, "speed_up": best[rate, nbytes, BASELINE]["measured_s"] / row["measured_s"]})
    return [f"a ring of {rows[0]['hosts']} hosts", "", table_of(COLUMNS, found), "", NOTE]


EXPERIMENT = Experiment(
    name="line-share",
    question="what share of a link's rate does an exchange use, by codec?",
    answer=Answer("of line", ("codec", "rate", "size")),
    options=LineShareOptions,
    cells=cells,
    run=measured_by(__name__),
    table=table,
)
