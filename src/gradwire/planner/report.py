"""A choice as tables and paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.plan import Plan
from gradwire.planner.explain import name_coding, name_plan
from gradwire.planner.result import Choice
from gradwire.planner.scaling import LEAST_GAIN, ScalePoint, gains, paying_ranges
from gradwire.planner.search.predict import Prediction
from gradwire.tables import Column, Table, figure
from gradwire.units import format_duration

_STEP_LEGEND = "step = compute + exposed; exposed: what computation does not hide of the exchange"
_TERMS_LEGEND = (
    ", which is codec + frames + wait. codec: encoding and decoding; frames: handing them over and taking "
    "them; wait: for the wire, other hosts and cores."
)
_LOSS_LEGEND = (
    ". extra: steps that the plan needs in addition to reach a loss, from the gradients' noise and what such "
    "plans have cost other runs; to loss: the product, and its standard deviation."
)
_SIZES_LEGEND = " seg, bkt: the largest segment and bucket. wire: sent by the busiest host."
_SCALING_LEGEND = "Adds: what each host since the row before adds, in hosts. Every host keeps its batch."
Report = list[str | Table]
"""What ``tables.show`` takes."""


def report(choice: Choice, top: int) -> Report:
    """Return inputs, ranking, choice and scaling."""
    told = [(each.name, f"{each.value} ({each.source})") for each in choice.inputs]
    return [
        Table((Column.of_text(""), Column.of_text("")), told),
        *_refused(choice),
        "",
        *ranking(choice, top),
        "",
        choice.explanation,
        *(["", *scaling(choice.scaling)] if choice.scaling else []),
    ]


def ranking(choice: Choice, top: int) -> Report:
    """Return the table of plans: the chosen one has a mark and the first row, then the fastest follow."""
    shown = choice.selection.ordered[:top]
    slowest_s = max(each.to_loss_s for each in shown)
    unit, scale = ("s", 1.0) if slowest_s >= 10 else ("ms", 1e3)
    by_loss = choice.query.noise is not None
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
    more = len(choice.ranking) - len(shown)
    pruned = choice.selection.considered - len(choice.ranking)
    note = f"{legend} {_compute(choice, shown)}"
    if more > 0 or pruned > 0:
        within = f"{100 * choice.selection.uncertainty:.0f} % of the fastest"
        note += f" Not shown: {max(0, more)} slower plans, and {pruned} that cannot come within {within}."
    return [Table(columns, rows), note]


def scaling(points: Sequence[ScalePoint]) -> Report:
    """Return the table over numbers of hosts, and what further hosts add."""
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
    """Return the highest throughput, and between which numbers of hosts each further one adds much."""
    ranges, last = paying_ranges(points), points[-1].hosts
    best = max(points, key=lambda each: each.speedup)
    grows = "still grows" if best.hosts == last else "is highest"
    peak = f"The throughput {grows} at {best.hosts} hosts, with {best.speedup:.2f}x that of one"
    enough = f"{LEAST_GAIN:g} of a host or more"
    if not ranges:
        return f"{peak}; nowhere does each further host add {enough}."
    if ranges == [(points[0].hosts, last)]:
        return f"{peak}; everywhere each further host adds {enough}."
    where = " and ".join(f"from {low} to {high}" for low, high in ranges)
    return f"{peak}; each further host adds {enough} {where}, and less elsewhere."


def _compute(choice: Choice, shown: Sequence[Prediction]) -> str:
    """Return what computation takes, by itself and in the pipelines that are shown."""
    words = f"Compute takes {format_duration(choice.query.workload.compute_s)}"
    pipelines = sorted({each.plan.pipeline for each in shown if each.plan.pipeline > 1})
    for pipeline in pipelines:
        seconds = choice.query.workload.compute_with_s(pipeline)
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
        f"{name_coding(plan.encoding)} {plan.algorithm}{_training(plan)}",
        _size(plan.segment_nbytes),
        "" if plan.bucket_nbytes is None else _size(plan.bucket_nbytes),
        *(figure(scale * each) for each in seconds),
        figure(cost.wire_nbytes / 1e6),
        f"{prediction.ratio:.3g}",
        *([f"{100 * prediction.extra.share:.1f}"] if by_loss else []),
        *(figure(scale * each) for each in to_loss),
    )


def _training(plan: Plan) -> str:
    return " sharded" if plan.is_sharded else f" K={plan.pipeline}" if plan.pipeline > 1 else ""


def _refused(choice: Choice) -> list[str]:
    over = [
        f"{name_coding(each.codec)} ({each.error:.2g}{'' if each.guaranteed else ', measured'})"
        for each in choice.admissions
        if not each.admitted
    ]
    return [f"beyond the largest error of {choice.query.largest_error:g}: {', '.join(over)}"] if over else []


def _size(nbytes: int) -> str:
    for unit, power in (("M", 20), ("k", 10)):
        if nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{unit}"
    return str(nbytes)
