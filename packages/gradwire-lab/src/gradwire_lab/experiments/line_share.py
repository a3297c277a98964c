"""How much of the line an exchange uses, and when a busy processor makes compression useless.

An uncompressed ring is compared with the line rate that the same hosts measure; a codec of ratio r is
compared with r times the speed of the uncompressed ring.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.cli.parser import between_commas, codec_specs, listed
from gradwire.codecs import parse
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.tables import Column, Table, figure
from gradwire.units import exact_size, parse_size
from gradwire_lab.experiments.experiment import Cell, Experiment, Report, Row, cells_of
from gradwire_lab.experiments.hosts import check_networks, measure_cells

if TYPE_CHECKING:  # torch's import takes seconds: only the hosts need it
    from gradwire_lab.experiments.hosts.ranks import Ranks

BASELINE = "identity"
SEGMENTS = (1 << 19, 1 << 20, 1 << 21)
BUDGET_S = 2.0
"""For all exchanges of a cell: 3 at least, and 9 at most."""
COLUMNS = (
    Column("rate"),
    Column("size"),
    Column.of_text("codec"),
    Column("segment"),
    Column("busbw", "MB/s"),
    Column("of line", "%"),
    Column("ratio"),
    Column("speed-up"),
    Column("of ratio", "%"),
)
NOTE = (
    "The fastest segment of each codec. Busbw: size / seconds * 2 (p - 1) / p. Of line: busbw as a share of "
    f"the line's measured rate. Speed-up: over {BASELINE}. Of ratio: the speed-up as a share of the ratio."
)


@dataclass(frozen=True)
class LineShareOptions:
    """What is measured: an exchange for each rate, size, codec, and segment."""

    hosts: int = 4
    rates: tuple[str, ...] = ("100mbit", "200mbit", "500mbit", "1gbit", "2gbit")
    sizes: tuple[int, ...] = (16 << 20, 64 << 20)
    codecs: tuple[str, ...] = (BASELINE, "errbound:2^-10", "quantize:8", "bf16")

    def __post_init__(self) -> None:
        check_networks([(self.hosts, rate) for rate in self.rates])
        listed(self.sizes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's options."""
    rates, codecs = ",".join(LineShareOptions.rates), ",".join(LineShareOptions.codecs)
    parser.add_argument("--hosts", type=int, metavar="N", default=4, help="number of hosts (4)")
    parser.add_argument("--rates", metavar="LIST", default=rates, help=f"of every host ({rates})")
    parser.add_argument("--sizes", metavar="LIST", default="16MiB,64MiB", help="of buckets (16MiB,64MiB)")
    parser.add_argument(
        "--codecs", metavar="LIST", default=codecs, help=f"beside {BASELINE} (errbound:2^-10,...)"
    )


def read(words: argparse.Namespace) -> LineShareOptions:
    """Return the options. Raises ``SpecError``."""
    codecs = tuple(dict.fromkeys((BASELINE, *codec_specs(words.codecs))))
    sizes = listed(tuple(parse_size(text) for text in words.sizes.split(",")))
    return LineShareOptions(words.hosts, tuple(dict.fromkeys(between_commas(words.rates))), sizes, codecs)


def cells(options: LineShareOptions) -> list[Cell]:
    """Return a cell for each rate, size, codec, and segment."""
    return cells_of(
        {"hosts": options.hosts},
        rate=options.rates,
        nbytes=options.sizes,
        codec=options.codecs,
        segment_nbytes=SEGMENTS,
    )


def run(_options: LineShareOptions, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
    """Measure cells in a testbed for each rate."""
    measure_cells(__name__, cells, report)


def measure(ranks: Ranks, cells: Sequence[Cell]) -> None:
    """Measure the cells of one network, as one of its ranks."""
    environment = ranks.environment([BASELINE])
    for cell in cells:
        count = cell["nbytes"] // FLOAT_NBYTES
        plan = Plan(parse(cell["codec"]), "ring", cell["segment_nbytes"])
        seconds = statistics.median(ranks.time_s(plan, count, BUDGET_S, least=3, most=9))
        ratio = ranks.ratio(plan, count)
        if environment is not None:
            figures = {
                "measured_s": seconds,
                "ratio": ratio,
                "busbw_nbytes_per_s": cell["nbytes"] / seconds * 2 * (ranks.world - 1) / ranks.world,
                "line_nbytes_per_s": environment.line.nbytes_per_s,
            }
            ranks.report(cell, figures)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a row for each rate, size, and codec."""
    best: dict[tuple[str, int, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["measured_s"], reverse=True):
        best[row["rate"], row["nbytes"], row["codec"]] = row
    found = []
    for rate, nbytes, codec in dict.fromkeys((row["rate"], row["nbytes"], row["codec"]) for row in rows):
        row = best[rate, nbytes, codec]
        speed_up = best[rate, nbytes, BASELINE]["measured_s"] / row["measured_s"]
        found.append(
            (
                rate,
                exact_size(nbytes),
                codec,
                exact_size(row["segment_nbytes"]),
                figure(row["busbw_nbytes_per_s"] / 1e6),
                f"{100 * row['busbw_nbytes_per_s'] / row['line_nbytes_per_s']:.1f}",
                f"{row['ratio']:.2f}",
                f"{speed_up:.2f}x",
                f"{100 * speed_up / row['ratio']:.0f}",
            )
        )
    return [f"a ring of {rows[0]['hosts']} hosts", "", Table(COLUMNS, found), "", NOTE]


EXPERIMENT = Experiment(
    name="line-share",
    question="how much of the line does an exchange use, with each codec?",
    add_arguments=add_arguments,
    read=read,
    cells=cells,
    run=run,
    table=table,
)
