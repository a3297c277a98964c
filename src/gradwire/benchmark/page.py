"""The pages of benchmarks: what the line carries; which all-reduce is the fastest over it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.benchmark.allreduce import TORCH
from gradwire.benchmark.picture import paint_allreduce, paint_line_rate, size_of
from gradwire.benchmark.report import allreduce_table, describe_line, limits, line_rate_tables
from gradwire.benchmark.result import SCHEMA, Result, read_result, torch_times
from gradwire.page import Picture, Report, Section, report_page
from gradwire.testbed.current import described_in_words
from gradwire.timing.replay.line import SCHEMA as LINE_RATE
from gradwire.timing.replay.line import Line, LineRate, Point
from gradwire.units import exact_size, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def line_rate_page(record: Mapping[str, Any]) -> str:
    """Return the page of the record of ``gradwire bench line-rate``."""
    rates = {tuple(each["ranks"]): _rate(each, record) for each in record["pairs"]}
    (first, note), *others = line_rate_tables(rates)
    measured = next(iter(rates.values()))

    def paint(figure: Figure) -> None:
        paint_line_rate(figure, measured)

    pair = " and ".join(map(str, next(iter(rates))))
    caption = (
        "Left: the time of one message, and what the line's latency and rate make of it. Right: bandwidths."
    )
    sections: list[Section] = [
        (f"Ranks {pair}", [("Messages by size", first), note, Picture("line", caption, paint, 3.2)]),
        ("All pairs", [part for table, said in others for part in (("Lines of all pairs", table), said)]),
    ]
    title = f"Line between the ranks {pair}, {_place(record)}"
    return report_page(Report(title, describe_line(measured.line), sections), record)


def allreduce_page(record: Mapping[str, Any]) -> str:
    """Return the page of the record of ``gradwire bench allreduce``."""
    line = None if record["line"] is None else Line(**record["line"])
    results = [read_result(row, line) for row in record["results"]]
    table, note = allreduce_table(results, line)

    def paint(figure: Figure) -> None:
        paint_allreduce(figure, results)

    picture = Picture(
        "medians", "Median times; crosses are the least times by theory.", paint, size_of(results)[1]
    )
    sections: list[Section] = [
        ("All-reduces", [("Time and bytes of each configuration", table), note]),
        ("Times", [picture]),
    ]
    title = f"All-reduce of {record['options']['data']}, {_place(record)}"
    return report_page(Report(title, f"{fastest(results)}.", sections), record)


def fastest(results: list[Result]) -> str:
    """Return in words which configuration is the fastest for the most ranks and the largest size."""
    world = max(result.world for result in results)
    largest = max(result.configuration.nbytes for result in results if result.world == world)
    own = [it for it in results if (it.world, it.configuration.nbytes) == (world, largest)]
    best = min(own, key=lambda each: each.timing.p50_s)
    name = best.configuration
    codec = "" if name.algorithm == TORCH else f" with {name.codec}"
    said = (
        f"{name.algorithm}{codec} is the fastest for {exact_size(largest)} on {world} ranks: "
        f"{format_duration(best.timing.p50_s)}"
    )
    torch_s = torch_times(results).get((world, largest))
    if torch_s is None or name.algorithm == TORCH:
        return said
    return f"{said}, {torch_s / best.timing.p50_s:.2f}x as fast as PyTorch's own"


def _rate(pair: Mapping[str, Any], record: Mapping[str, Any]) -> LineRate:
    points = tuple(Point(**point) for point in pair["points"])
    return LineRate(Line(**pair["line"]), points, record["machine"], record["machine_id"])


def _place(record: Mapping[str, Any]) -> str:
    return limits(record["options"]["link"], described_in_words(record["topology"]))


PAGES = MappingProxyType({LINE_RATE: line_rate_page, SCHEMA: allreduce_page})
"""The pages of records by their schemas."""
