"""A ledger's record, and its page: what exchanges cost and lost, in all and by bucket."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.fields import mapping, real, rows, text, whole
from gradwire.page import Part, Picture, Report, Section, report_page
from gradwire.page.palette import CURVES
from gradwire.records import make_record
from gradwire.tables import Column, Table
from gradwire.training.ledger.counts import SOURCE, BucketCounts, Tally
from gradwire.training.ledger.decided import Decided
from gradwire.training.ledger.lost import LostBook
from gradwire.training.ledger.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "gradwire.ledger/1"
SHOWN = 20
"""Buckets in the picture, and parameters in the table."""
PARTS = (("encode_s", CURVES[4]), ("decode_s", CURVES[1]), ("handling_s", CURVES[6]), ("wait_s", CURVES[5]))


def ledger_record(state: Mapping[str, Any], summary: Summary) -> dict[str, object]:
    """Return the record of a ledger: its ``state_dict``, and what it has warned of."""
    fields = {"ledger": state, "warnings": [*summary.warnings], "lost_sinks": [*summary.lost_sinks]}
    return make_record(SCHEMA, fields)


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a ledger's record. Raises ``StateError`` if it holds no ledger's state."""
    summary = read_summary(record)
    said, *others = summary.sentences()
    buckets: list[Part] = [("Sums of all exchanges", summary.table()), _bars(summary.buckets)]
    sections: list[Section] = [
        ("What happened", others),
        ("Buckets", buckets if summary.buckets else []),
        ("What encoding lost", _lost(summary.lost)),
    ]
    return report_page(Report(summary.title, f"{said[0].upper()}{said[1:]}.", sections), record)


def read_summary(record: Mapping[str, Any]) -> Summary:
    """Return the summary of the ledger whose record this is."""
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


def _bars(buckets: Mapping[str, BucketCounts]) -> Picture:
    largest = sorted(buckets.items(), key=lambda each: -each[1].cost.total_s)[:SHOWN]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        left = [0.0] * len(largest)
        for name, colour in PARTS:
            part = [getattr(counts.cost, name) for _, counts in largest]
            label = name.removesuffix("_s")
            axes.barh(range(len(largest)), part, left=left, height=0.62, color=colour, label=label)
            left = [start + width for start, width in zip(left, part, strict=True)]
        axes.set_yticks(range(len(largest)), [name for name, _ in largest], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlabel("time of the exchanges [s]")
        axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
        axes.spines[["top", "right"]].set_visible(False)

    caption = f"Where the time of exchanges went, hidden or not: the {SHOWN} slowest buckets at most."
    return Picture("buckets-times", caption, paint, 1.1 + 0.3 * len(largest))


def _lost(lost: LostBook) -> list[Part]:
    """Return the parameters of whose gradients encoding lost most."""
    rows = [
        (name, f"{100 * counts.mean:.2f}", f"{100 * counts.largest:.2f}", str(counts.samples))
        for name, counts in lost.worst(SHOWN)
        if counts.mean is not None
    ]
    columns = (Column.of_text("parameter"), Column("mean", "%"), Column("most", "%"), Column("steps"))
    return [("Shares of gradients' norms, the largest first", Table(columns, rows))] if rows else []


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page of a record by its schema."""
