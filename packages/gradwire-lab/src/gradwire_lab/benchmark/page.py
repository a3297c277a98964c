"""The page of all-reduces: which is the fastest over a line."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.line_rate.page import place as _place
from gradwire.page import Picture, Report, Section, render
from gradwire.timing.line import Line
from gradwire.units import exact_size, format_duration
from gradwire_lab.benchmark.allreduce import SCHEMA, TORCH, Result, read_result, torch_times
from gradwire_lab.benchmark.report import allreduce_table, paint_allreduce, size_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    sections = [
        Section("All-reduces", [("Time and bytes of each configuration", table), note]),
        Section("Times", [picture]),
    ]
    title = f"All-reduce of {record['options']['data']}, {_place(record)}"
    return render(Report(title, f"{fastest(results)}.", sections), record)


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


PAGES = MappingProxyType({SCHEMA: allreduce_page})
"""The page of a record by its schema."""
