"""The page of a choice: which plan and why, all plans that were predicted, and how many hosts pay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.page import Part, Picture, Report, Section, report_page
from gradwire.page.palette import CURVES
from gradwire.page.picture import COLOURS
from gradwire.page.tables import Mark, marked
from gradwire.plan import Plan
from gradwire.planner.explain import name_plan
from gradwire.planner.result import SCHEMA
from gradwire.tables import Column, Table, figure
from gradwire.units import exact_size, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKING = (
    *map(Column.of_text, ("plan", "segment", "bucket")),
    *(Column(name, "ms") for name in ("step", "compute", "exposed", "exchange", "codec", "wait")),
    Column("wire", "MB"),
    Column("ratio"),
    *(Column(name, unit) for name, unit in (("extra steps", "%"), ("to loss", "ms"))),
)
LEGEND = (
    "Step = compute + exposed; exposed: what computation doesn't hide of the exchange. Codec: encoding and "
    "decoding. Wait: for the wire, other hosts, and cores. Wire: sent by the busiest host. Extra steps: what "
    "the plan needs in addition to reach a loss; to loss: the product of both."
)
SCALING = (*map(Column, ("hosts", "step", "throughput", "efficiency")), Column.of_text("plan"))
SHOWN = 12
"""Plans in the picture."""
PARTS = (("compute_s", "compute", CURVES[2]), ("exposed_s", "exposed communication", CURVES[5]))


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a choice's record."""
    verdict, _, why = record["explanation"].partition(". ")
    inputs = [(each["name"], each["value"], each["source"]) for each in record["inputs"]]
    ranking, scaling = record["ranking"], record["scaling"]
    sections: list[Section] = [
        ("Why", [why] if why else []),
        ("What it is based on", [("Inputs", Table(_texts("input", "value", "source"), inputs))]),
        (
            "Plans",
            [
                ("Predictions: the chosen plan, then the fastest first", _ranking(ranking, record["plan"])),
                LEGEND,
                _bars(ranking),
            ],
        ),
        ("Codecs", [("Codecs that were considered", _codecs(record["codecs"]))]),
        ("More or fewer hosts", _scaling(scaling, record["hosts"])),
        ("The plan as JSON", [json.dumps(record["plan"])]),
    ]
    title = f"A plan for {record['hosts']} hosts"
    said = f"Chosen: {verdict}{'' if verdict.endswith('.') else '.'}"
    return report_page(Report(title, said, sections), record)


def _texts(*names: str) -> list[Column]:
    return [*map(Column.of_text, names)]


def _ranking(ranking: Sequence[Mapping[str, Any]], chosen: object) -> Table:
    return Table(RANKING, [_row(each, each["plan"] == chosen) for each in ranking])


def _row(each: Mapping[str, Any], is_chosen: bool) -> tuple[str, ...]:
    plan = _plan(each)
    name = name_plan(plan)
    codec_s = each["encode_s"] + each["decode_s"]
    names = ("step_s", "compute_s", "exposed_s", "exchange_s")
    times = (*(each[name] for name in names), codec_s, each["wait_s"])
    by_loss = bool(each["extra_steps"]) or each["to_loss_s"] != each["step_s"]
    return (
        marked(Mark(f"{name}, chosen", "\u2713", "good")) if is_chosen else name,
        exact_size(plan.segment_nbytes),
        "" if plan.bucket_nbytes is None else exact_size(plan.bucket_nbytes),
        *(figure(1e3 * seconds) for seconds in times),
        figure(each["wire_nbytes"] / 1e6),
        f"{each['ratio']:.3g}",
        *((f"{100 * each['extra_steps']:.1f}", figure(1e3 * each["to_loss_s"])) if by_loss else ("", "")),
    )


def _plan(values: Mapping[str, Any]) -> Plan:
    return Plan.from_json(json.dumps(values["plan"]))


def _bars(ranking: Sequence[Mapping[str, Any]]) -> Picture:
    shown = ranking[:SHOWN]

    def paint(drawn: Figure) -> None:
        axes = drawn.subplots()
        left = [0.0] * len(shown)
        for name, label, colour in PARTS:
            part = [1e3 * each[name] for each in shown]
            axes.barh(range(len(shown)), part, left=left, height=0.62, color=colour, label=label)
            left = [start + width for start, width in zip(left, part, strict=True)]
        axes.set_yticks(range(len(shown)), [name_plan(_plan(each)) for each in shown], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("predicted time of a step [ms]")
        axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        _plain(axes)

    return Picture("plans", f"The fastest plans, {len(shown)} at most.", paint, 1.1 + 0.28 * len(shown))


def _codecs(codecs: Sequence[Mapping[str, Any]]) -> Table:
    columns = [Column.of_text("codec"), Column("largest error"), *_texts("is", "allowed")]
    rows = [
        (
            each["codec"],
            "unknown" if each["largest_error"] is None else f"{each['largest_error']:.3g}",
            "guaranteed" if each["guaranteed"] else "measured",
            "yes" if each["admitted"] else "no",
        )
        for each in codecs
    ]
    return Table(columns, rows)


def _scaling(points: Sequence[Mapping[str, Any]], hosts: int) -> list[Part]:
    if not points:
        return []
    rows = [
        (
            str(each["hosts"]),
            format_duration(each["step_s"]),
            f"{each['speedup']:.2f}x",
            f"{100 * each['efficiency']:.0f} %",
            "" if each["plan"] is None else name_plan(_plan(each)),
        )
        for each in points
    ]

    def paint(drawn: Figure) -> None:
        axes = drawn.subplots()
        numbers = [each["hosts"] for each in points]
        axes.plot(numbers, numbers, ":", color=COLOURS["ink"], linewidth=0.8, label="ideal")
        speedups = [each["speedup"] for each in points]
        axes.plot(numbers, speedups, "o-", color=CURVES[0], markersize=3.5, label="predicted")
        axes.axvline(hosts, color=COLOURS["rule"], linewidth=0.8)
        axes.set_xlabel("hosts")
        axes.set_ylabel("throughput of one host")
        axes.legend(fontsize=8, frameon=False)
        _plain(axes)

    caption = "Throughput by hosts; each keeps its batch."
    return [
        ("Throughput with other numbers of hosts", Table(SCALING, rows)),
        Picture("hosts", caption, paint, 3.0),
    ]


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page of a record by its schema."""
