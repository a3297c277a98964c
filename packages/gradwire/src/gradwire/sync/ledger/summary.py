"""The summary of a ledger: totals over its steps, as a table and as an HTML page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.fields import mapping, real, rows, text, whole
from gradwire.page import Part, Picture, Report, Section, in_notebook, render
from gradwire.page.picture import CURVES, paint_bars
from gradwire.records import make_record
from gradwire.sync.ledger.counts import SOURCE, BucketCounts, BypassCounts, Decided, Tally
from gradwire.sync.ledger.lost import LostBook, LostCounts
from gradwire.tables import Column, Table, lines
from gradwire.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_COLUMNS = (
    Column.of_text("bucket"),
    *map(Column, ("exchanges", "raw", "wire", "ratio", "lost", "codec", "wait", "exposed")),
)
_WORST = 3  # the largest number of buckets or parameters that a sentence lists


@dataclass(frozen=True)
class Summary:
    """The totals of one rank's ledger. ``str()`` returns them as a table and sentences.

    Attributes
    ----------
    rank
        The rank of the ledger.
    steps
        The number of steps that ended.
    wall_s
        Seconds from the creation of the ledger to the end of its last step.
    tally
        The counts by bucket and by reason, including a step that has not ended.
    lost_sinks
        One sentence for every sink that failed and was dropped.
    lost
        The relative errors of encoding: in total, by bucket and by parameter.
    warnings
        The warnings of this process.
    decided
        One sentence for every plan that the run has chosen.
    """

    rank: int
    steps: int
    wall_s: float
    tally: Tally
    lost_sinks: tuple[str, ...] = ()
    lost: LostBook = field(default_factory=LostBook)
    warnings: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()

    @property
    def buckets(self) -> dict[str, BucketCounts]:
        """The counts by bucket."""
        return self.tally.buckets

    @property
    def bypasses(self) -> dict[str, BypassCounts]:
        """The bypasses by reason."""
        return self.tally.bypasses

    @property
    def total(self) -> BucketCounts:
        """The sum of the counts over all buckets."""
        return self.tally.total

    @property
    def gradient_nbytes(self) -> int:
        """The total bytes of gradient, including bypasses."""
        return self.total.gradient_nbytes + self.tally.bypassed.nbytes

    @property
    def exposed_share(self) -> float:
        """The share of ``wall_s`` for which the training thread waited, or NaN before a step has ended."""
        return self.total.exposed_s / self.wall_s if self.wall_s > 0 else math.nan

    def __str__(self) -> str:
        said, *others = self.sentences()
        return "\n".join([self.title, said, "", *lines(self.table()), "", *others])

    def _repr_html_(self) -> str:
        return in_notebook(self.title, verdict_of(self), self.table(), *self.sentences()[1:])

    @property
    def title(self) -> str:
        """The summary's first line: the rank, the number of steps, and the time of the steps."""
        return f"gradwire, rank {self.rank}: {counted(self.steps, 'step')} in {format_duration(self.wall_s)}"

    def sentences(self) -> list[str]:
        """Return the sentences of the summary. The first sentence has the cost of the exchanges."""
        return [
            self._exposed(),
            *self._nonfinite(),
            *self._scales(),
            *self._worst(),
            *self.decided,
            *self._bypasses(),
            *self.warnings,
            *self.lost_sinks,
        ]

    def table(self) -> Table:
        """Return a table with a row for each bucket, and a row for their total."""
        total = self.total
        none, known = LostCounts(), self.lost.buckets
        rows = [(name, counts, known.get(name, none)) for name, counts in self.buckets.items()]
        rows.append(("total", total, self.lost.total))
        cells = [_row(name, counts, lost) for name, counts, lost in rows]
        return Table(_COLUMNS, cells, has_total=True)

    def _exposed(self) -> str:
        total = self.total
        of_wall = "" if math.isnan(self.exposed_share) else f" ({self.exposed_share:.1%} of the time)"
        return (
            f"training waited {format_duration(total.exposed_s)}{of_wall} for exchanges that took "
            f"{format_duration(total.cost.total_s)}; {_compared(total.cost.ratio)}"
        )

    def _nonfinite(self) -> list[str]:
        total, count = self.total, self.total.cost.nonfinite
        if not count:
            return []
        often = [(name, often) for name, each in self.buckets.items() if (often := each.cost.nonfinite)]
        worst = sorted(often, key=lambda each: -each[1])[:_WORST]
        where = ", ".join(f"{name} ({counted(count, 'time')})" for name, count in worst)
        return [
            f"{count} of {counted(total.exchanges, 'exchange')} returned NaN or infinity, most often "
            f"{where}; check the loss"
        ]

    def _scales(self) -> list[str]:
        scales = self.total.cost.scales
        if scales.smallest is None:
            return ["the plan's scale changed no frame"] if scales else []
        left = f", and {scales.unscaled} were not scaled" if scales.unscaled else ""
        return [f"frames were scaled by 2^{scales.smallest} to 2^{scales.largest}{left}"]

    def _worst(self) -> list[str]:
        if self.lost.total.mean is None:
            return []
        worst = [
            f"{name} {counts.mean:.2%} (at most {counts.largest:.2%})"
            for name, counts in self.lost.worst(_WORST)
            if counts.mean is not None
        ]
        steps = counted(self.lost.total.samples, "step")
        head = f"the mean relative error of encoding was {self.lost.total.mean:.2%} over {steps}"
        return [f"{head}; the largest: {', '.join(worst)}" if worst else head]

    def _bypasses(self) -> list[str]:
        if not self.bypasses:
            return ["no gradient bypassed the codec"]
        nbytes = self.tally.bypassed.nbytes
        share = nbytes / self.gradient_nbytes if self.gradient_nbytes else 0.0
        return [
            f"compression did not run for {nbytes} of {self.gradient_nbytes} bytes ({share:.1%}):",
            *(
                f"  {reason}: {counted(bypass.count, 'time')}, {bypass.nbytes} bytes"
                for reason, bypass in self.bypasses.items()
            ),
        ]


def _compared(ratio: float) -> str:
    if ratio < 1:
        return f"{1 / ratio:.2f} times as many bytes on the wire as in the gradients, including headers"
    return f"{ratio:.2f} times fewer bytes on the wire"


def _row(name: str, counts: BucketCounts, lost: LostCounts) -> tuple[str, ...]:
    cost = counts.cost
    return (
        name,
        str(counts.exchanges),
        format_size(cost.raw_nbytes),
        format_size(cost.wire_nbytes),
        f"{cost.ratio:.2f}",
        "-" if lost.mean is None else f"{lost.mean:.1%}",
        format_duration(cost.codec_s),
        format_duration(cost.wait_s),
        format_duration(counts.exposed_s),
    )


SCHEMA = "gradwire.ledger/1"
SHOWN = 20  # the largest number of buckets in the plot, and of parameters in the table
PARTS = (("encode_s", CURVES[4]), ("decode_s", CURVES[1]), ("handling_s", CURVES[6]), ("wait_s", CURVES[5]))


def ledger_record(state: Mapping[str, Any], summary: Summary) -> dict[str, object]:
    """Return the record of a ledger."""
    return make_record(SCHEMA, ledger_fields(state, summary))


def ledger_fields(state: Mapping[str, Any], summary: Summary) -> dict[str, object]:
    """Return the fields of a ledger's record: its ``state_dict``, its warnings, and its failed sinks."""
    return {"ledger": state, "warnings": [*summary.warnings], "lost_sinks": [*summary.lost_sinks]}


def page_of(record: Mapping[str, Any]) -> str:
    """Return the HTML page of a ledger's record. Raises ``StateError`` for an invalid record."""
    summary = read_summary(record)
    hero = bars_of(summary) if summary.buckets else None
    return render(Report(summary.title, verdict_of(summary), sections_of(summary), hero), record)


def verdict_of(summary: Summary) -> str:
    """Return the cost of the exchanges as a sentence."""
    said = summary.sentences()[0]
    return f"{said[0].upper()}{said[1:]}."


def sections_of(summary: Summary, of: str = "") -> list[Section]:
    """Return the sections of a ledger's page. ``of`` distinguishes several ledgers on one page."""
    buckets: list[Part] = [("Sums of all exchanges", summary.table())] if summary.buckets else []
    return [
        Section("Details", summary.sentences()[1:], f"details {of}" if of else ""),
        Section("Buckets", buckets, f"buckets {of}" if of else ""),
        Section("Encoding errors", _lost(summary.lost), f"encoding errors {of}" if of else ""),
    ]


def read_summary(record: Mapping[str, Any]) -> Summary:
    """Return the summary of a ledger from its record. Raises ``StateError`` for an invalid record."""
    told = SOURCE.fields(record)
    state = SOURCE.fields(told.get("ledger", mapping))
    tally = state.get("ended", Tally.of_state)
    tally.add(state.get("open", Tally.of_state))
    return Summary(
        state.get("rank", whole()),
        state.get("steps", whole()),
        float(state.get("wall_s", real(0.0, 2.0**80))),
        tally,
        told.get("lost_sinks", rows(text)),
        state.get("lost", LostBook.of_state),
        told.get("warnings", rows(text)),
        tuple(each.reason for each in state.get("decided", rows(Decided.of_state))),
    )


def bars_of(summary: Summary, of: str = "") -> Picture:
    """Return a chart of the slowest buckets' times. ``of`` distinguishes several ledgers on one page."""
    largest = sorted(summary.buckets.items(), key=lambda each: -each[1].cost.total_s)[:SHOWN]

    def paint(figure: Figure) -> None:
        parts = [
            (name.removesuffix("_s"), colour, [getattr(counts.cost, name) for _, counts in largest])
            for name, colour in PARTS
        ]
        names = [name for name, _ in largest]
        paint_bars(figure.subplots(), names, parts, "time of the exchanges [s]")

    caption = f"Time of the exchanges, overlapped or not, of at most the {SHOWN} slowest buckets."
    name = "-".join(["buckets-times", *re.findall(r"\w+", of.lower())])
    return Picture(name, caption, paint, 1.1 + 0.3 * len(largest), 1.1 + 0.38 * len(largest))


def _lost(lost: LostBook) -> list[Part]:
    """Return a table of the parameters with the largest relative errors, if any were measured."""
    rows = [
        (name, f"{100 * counts.mean:.2f}", f"{100 * counts.largest:.2f}", str(counts.samples))
        for name, counts in lost.worst(SHOWN)
        if counts.mean is not None
    ]
    columns = (Column.of_text("parameter"), Column("mean", "%"), Column("largest", "%"), Column("steps"))
    return [("Relative errors of gradients, the largest first", Table(columns, rows))] if rows else []


PAGES = MappingProxyType({SCHEMA: page_of})  # the page function of each record schema
