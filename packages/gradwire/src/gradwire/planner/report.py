"""The report of a choice: tables and paragraphs for the terminal, and the page of its record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.page import Mark, Picture, Section, render
from gradwire.page import Report as PageReport
from gradwire.page.picture import CURVES, paint_bars
from gradwire.plan import Plan
from gradwire.planner.by_hosts import by_hosts, gains_by_hosts
from gradwire.planner.choice import LEAST_GAIN, SCHEMA, Choice, ScalePoint, gains, paying_ranges
from gradwire.planner.explain import LANES_LEGEND, name_coding, name_in_table, name_plan
from gradwire.planner.predict import Prediction
from gradwire.tables import Column, Table, figure
from gradwire.units import exact_size, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STEP_LEGEND = "step = compute + exposed; exposed: the part of the exchange that does not overlap computation"
_TERMS_LEGEND = (
    ", where the exchange is codec + frames + wait. codec: encoding and decoding; frames: sending and "
    "receiving them; wait: for the network, other hosts and cores."
)
_LOSS_LEGEND = (
    ". extra: the share of extra steps that the plan needs to reach a loss, from the gradients' noise and "
    "results of other runs; to loss, ±: the step times 1 + extra, and the standard deviation of this time."
)
_SIZES_LEGEND = " seg, bkt: the largest segment and bucket. wire: the bytes that the busiest host sends."
_SCALING_LEGEND = (
    "Adds: the throughput per host added since the previous row. Each host keeps its batch size."
)
Report = list[str | Table]
"""The tables and paragraphs of a report, as arguments for ``tables.show``."""


def report(choice: Choice, top: int) -> Report:
    """Return the report of a choice: the verdict, then its inputs, ranking, reasons, and scaling."""
    inputs = [(each.name, f"{each.value} ({each.source})") for each in choice.inputs]
    verdict, why = _verdict(choice.explanation)
    return [
        verdict,
        "",
        Table((Column.of_text(""), Column.of_text("")), inputs),
        *_refused(choice),
        "",
        *ranking(choice, top),
        *(["", why] if why else []),
        *(["", *scaling(choice.scaling)] if choice.scaling else []),
    ]


def _verdict(explanation: str) -> tuple[str, str]:
    first, _, others = explanation.partition(". ")
    return f"Chosen: {first.removesuffix('.')}.", others


def ranking(choice: Choice, top: int) -> Report:
    """Return the table of plans: the chosen plan, marked, then the other plans, the fastest first."""
    shown = choice.ranked.ordered[:top]
    slowest_s = max(each.to_loss_s for each in shown)
    unit, scale = ("s", 1.0) if slowest_s >= 10 else ("ms", 1e3)
    by_loss = choice.environment.noise is not None
    terms = () if by_loss else ("codec", "frames", "wait")
    columns = (
        *map(Column.of_text, ("", "plan")),
        *(Column(name, "B") for name in ("seg", "bkt")),
        *(Column(name, unit) for name in ("step", "exposed", *terms)),
        Column("wire", "MB"),
        Column("ratio"),
        *((Column("extra", "%"), Column("to loss", unit), Column("±", unit)) if by_loss else ()),
    )
    rows = [_row(each, each is choice.prediction, scale, by_loss) for each in shown]
    legend = _STEP_LEGEND + (_LOSS_LEGEND if by_loss else _TERMS_LEGEND) + _SIZES_LEGEND
    legend += LANES_LEGEND if any(each.plan.lanes > 1 for each in shown) else ""
    more = len(choice.ranking) - len(shown)
    pruned = choice.ranked.considered - len(choice.ranking)
    note = f"{legend} {_compute(choice, shown)}"
    if more > 0 or pruned > 0:
        within = f"{100 * choice.ranked.uncertainty:.0f} % of the fastest"
        note += f" Not shown: {max(0, more)} slower plans, and {pruned} that cannot be within {within}."
    return [Table(columns, rows), note]


def scaling(points: Sequence[ScalePoint]) -> Report:
    """Return the table of step times by number of hosts, and a sentence on the gain of additional hosts."""
    figures = ("hosts", "step", "throughput", "adds", "efficiency")
    columns = (*map(Column, figures), Column.of_text("plan"))
    adds = ["", *(f"{gain:.2f}" for gain in gains(points))]
    rows = [
        (
            str(point.hosts),
            format_duration(point.step_s),
            f"{point.speedup:.2f}x",
            gain,
            f"{100 * point.efficiency:.0f} %",
            "" if point.prediction is None else name_plan(point.prediction.plan),
        )
        for point, gain in zip(points, adds, strict=True)
    ]
    return [Table(columns, rows), f"{verdict(points)} {_SCALING_LEGEND}"]


def verdict(points: Sequence[ScalePoint]) -> str:
    """Return a sentence with the highest throughput and the ranges in which additional hosts pay off."""
    ranges, last = paying_ranges(points), points[-1].hosts
    best = max(points, key=lambda each: each.speedup)
    grows = "still grows" if best.hosts == last else "is highest"
    peak = f"The throughput {grows} at {best.hosts} hosts, with {best.speedup:.2f}x that of one host"
    enough = f"{LEAST_GAIN:g} of a host or more"
    if not ranges:
        return f"{peak}; additional hosts add less than {LEAST_GAIN:g} of a host each."
    if ranges == [(points[0].hosts, last)]:
        return f"{peak}; each additional host adds {enough}."
    where = " and ".join(f"from {low} to {high}" for low, high in ranges)
    return f"{peak}; each additional host adds {enough} {where}, and less elsewhere."


def _compute(choice: Choice, shown: Sequence[Prediction]) -> str:
    """Return a sentence on the time of computation, without and with the pipelines' local updates."""
    words = f"Compute takes {format_duration(choice.request.workload.compute_s)}"
    pipelines = sorted({each.plan.pipeline for each in shown if each.plan.pipeline > 1})
    for pipeline in pipelines:
        seconds = choice.request.workload.compute_with_s(pipeline)
        words += f", {format_duration(seconds)} with the local updates of K={pipeline}"
    return f"{words}."


def _row(prediction: Prediction, is_chosen: bool, scale: float, by_loss: bool) -> tuple[str, ...]:
    plan, cost = prediction.plan, prediction.cost
    seconds = [prediction.step_s, prediction.exposed_s]
    if not by_loss:
        seconds += [cost.codec_s, cost.handling_s, cost.wait_s]
    to_loss = [prediction.to_loss_s, prediction.to_loss_deviation_s] if by_loss else []
    return (
        ">" if is_chosen else "",
        name_in_table(plan),
        _size(plan.segment_nbytes),
        "" if plan.bucket_nbytes is None else _size(plan.bucket_nbytes),
        *(figure(scale * each) for each in seconds),
        figure(cost.wire_nbytes / 1e6),
        f"{prediction.ratio:.3g}",
        *([f"{100 * prediction.extra.share:.1f}"] if by_loss else []),
        *(figure(scale * each) for each in to_loss),
    )


def _refused(choice: Choice) -> list[str]:
    over = ", ".join(
        f"{name_coding(each.codec)} ({each.error:.2g}{'' if each.guaranteed else ', measured'})"
        for each in choice.ranked.codecs
        if not each.admitted
    )
    return [f"above the largest error of {choice.request.largest_error:g}: {over}"] if over else []


def _size(nbytes: int) -> str:
    for unit, power in (("M", 20), ("k", 10)):
        if nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{unit}"
    return str(nbytes)


RANKING = (
    *map(Column.of_text, ("plan", "segment", "bucket")),
    *(Column(name, "ms") for name in ("step", "compute", "exposed", "exchange", "codec", "wait")),
    Column("wire", "MB"),
    Column("ratio"),
    *(Column(name, unit) for name, unit in (("extra steps", "%"), ("to loss", "ms"))),
)
LEGEND = (
    "Step = compute + exposed; exposed: the part of the exchange that doesn't overlap computation. Codec: "
    "encoding and decoding. Wait: for the network, other hosts, and cores. Wire: the bytes that the busiest "
    "host sends. Extra steps: the share of extra steps that the plan needs to reach a loss; to loss: the "
    "step times 1 + extra steps."
)
SHOWN = 12
"""The number of plans in the chart."""
PARTS = (("compute_s", "compute", CURVES[2]), ("exposed_s", "exposed communication", CURVES[5]))


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a choice's record."""
    verdict, why = _verdict(record["explanation"])
    inputs = [(each["name"], each["value"], each["source"]) for each in record["inputs"]]
    ranking, scaling, bars = record["ranking"], record["scaling"], _bars(record["ranking"])
    plans = Table(RANKING, [_page_row(each, each["plan"] == record["plan"]) for each in ranking])
    titled = "Predictions: the chosen plan, then all other plans by step time", plans
    sections = [
        Section("Why", [why] if why else []),
        Section("Plans", [*([bars] if scaling else []), titled, LEGEND]),
        Section("More or fewer hosts", by_hosts(scaling)),
        Section("Inputs", [("Inputs and their sources", Table(_texts("input", "value", "source"), inputs))]),
        Section("Codecs", [("Codecs that were considered", _codecs(record["codecs"]))]),
        Section("The plan as JSON", [json.dumps(record["plan"])]),
    ]
    title = f"A plan for {record['hosts']} hosts"
    hero = gains_by_hosts(scaling, record["hosts"]) if scaling else bars
    return render(PageReport(title, verdict, sections, hero), record)


def _texts(*names: str) -> list[Column]:
    return [*map(Column.of_text, names)]


def _page_row(each: Mapping[str, Any], is_chosen: bool) -> tuple[str, ...]:
    plan = Plan.from_values(each["plan"])
    name = name_plan(plan)
    codec_s = each["encode_s"] + each["decode_s"]
    names = ("step_s", "compute_s", "exposed_s", "exchange_s")
    times = (*(each[name] for name in names), codec_s, each["wait_s"])
    by_loss = bool(each["extra_steps"]) or each["to_loss_s"] != each["step_s"]
    return (
        Mark(f"{name}, chosen", "\u2713", "good") if is_chosen else name,
        exact_size(plan.segment_nbytes),
        "" if plan.bucket_nbytes is None else exact_size(plan.bucket_nbytes),
        *(figure(1e3 * seconds) for seconds in times),
        figure(each["wire_nbytes"] / 1e6),
        f"{each['ratio']:.3g}",
        *((f"{100 * each['extra_steps']:.1f}", figure(1e3 * each["to_loss_s"])) if by_loss else ("", "")),
    )


def _bars(ranking: Sequence[Mapping[str, Any]]) -> Picture:
    fastest: dict[str, Mapping[str, Any]] = {}
    for each in ranking:
        fastest.setdefault(name_plan(Plan.from_values(each["plan"])), each)
    names, shown = [*fastest][:SHOWN], [*fastest.values()][:SHOWN]

    def paint(drawn: Figure) -> None:
        parts = [(label, colour, [1e3 * each[name] for each in shown]) for name, label, colour in PARTS]
        paint_bars(drawn.subplots(), names, parts, "predicted time of a step [ms]", font_size=8)

    caption = "Predicted steps of the chosen plan, and of other plans with the fastest segments and buckets."
    return Picture("plans", caption, paint, 1.1 + 0.28 * len(shown), 1.1 + 0.36 * len(shown))


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


PAGES = MappingProxyType({SCHEMA: page_of})
"""The function that renders the page of a record, by the record's schema."""
