"""The page of codec speeds relative to memcpy, measured by ``bench/codecs.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.page import Picture, Report, Section, render
from gradwire.page.picture import COLOURS, CURVES, bar_height, legend_above, name_bars, without_frame
from gradwire.tables import Column, Table, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "gradwire.codec-speeds/1"
CALLS = ("encode", "decode", "decode_add")
COLUMNS = (
    *map(Column.of_text, ("codec", "target")),
    Column("ratio"),
    Column("largest error"),
    *(Column(name, "x memcpy") for name in CALLS),
    *(Column(name, "GB/s") for name in CALLS),
    Column("memcpy", "GB/s"),
)
NOTE = (
    "Speed: bytes of float32 per second of a call. A memcpy of the same array precedes every call, so other "
    "programs slow the memcpy and the call equally. Figures are medians. Ratio: bytes of floats per byte of "
    "payload."
)


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a record of codec speeds."""
    results, options = record["results"], record["options"]
    best = _best(results)
    table = Table(COLUMNS, [*map(_row, results)])
    sections = [Section("Codecs", [("Speeds of codecs and other compressors", table), NOTE])]
    title = (
        f"Speeds of codecs, {options['elements']} floats of {options['data']}, {options['threads']} thread(s)"
    )
    return render(Report(title, in_words(best), sections, _bars(best)), record)


def in_words(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the fastest and the slowest compressing codec."""
    lossy = [each for each in results if each["ratio"] > 1]
    if not lossy:
        return "No compressing codec was measured."
    first, last = (pick(lossy, key=lambda each: _share(each, "encode")) for pick in (max, min))
    said = f"{first['name']} encodes fastest, at {_share(first, 'encode'):.2f}x the speed of memcpy"
    return (
        f"{said}." if first is last else f"{said}; {last['name']} slowest, at {_share(last, 'encode'):.2f}x."
    )


def _share(result: Mapping[str, Any], call: str) -> float:
    speed = result[call]
    return float(speed["gbps"] / speed["memcpy_gbps"])


def _best(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return each codec's results on the target that encodes fastest."""
    names = dict.fromkeys(each["name"] for each in results)
    own = ([each for each in results if each["name"] == name] for name in names)
    return [max(each, key=lambda result: _share(result, "encode")) for each in own]


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    there = [call for call in CALLS if result[call] is not None]
    copies = sorted(result[call]["memcpy_gbps"] for call in there)
    return (
        result["name"],
        result["target"],
        f"{result['ratio']:.2f}",
        "unknown" if result["max_error"] is None else f"{result['max_error']:.2e}",
        *(f"{_share(result, call):.2f}" if call in there else "-" for call in CALLS),
        *(figure(result[call]["gbps"]) if call in there else "-" for call in CALLS),
        figure(copies[len(copies) // 2]),
    )


def _bars(results: Sequence[Mapping[str, Any]]) -> Picture:
    def paint(drawn: Figure) -> None:
        axes = drawn.subplots()
        height = bar_height(axes) / 2
        for number, (call, colour) in enumerate(zip(CALLS[:2], (CURVES[0], CURVES[1]), strict=True)):
            places = [place + height * (number - 0.5) for place in range(len(results))]
            shares = [_share(each, call) for each in results]
            axes.barh(places, shares, height=0.95 * height, color=colour, label=call)
        axes.axvline(1, color=COLOURS["ink"], linewidth=0.8, linestyle=":")
        name_bars(axes, [each["name"] for each in results], font_size=8)
        axes.set_xlabel("speed [multiples of memcpy's]")
        legend_above(axes, 2)
        without_frame(axes)

    caption = "Each codec on its fastest target. The dotted line is memcpy."
    return Picture("speeds", caption, paint, 1.1 + 0.32 * len(results), 1.1 + 0.42 * len(results))


PAGES = MappingProxyType({SCHEMA: page_of})
"""The function that makes a record's page, by schema."""
