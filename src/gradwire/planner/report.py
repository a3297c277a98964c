"""A choice as lines of text, at most 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gradwire.planner.result import Choice
from gradwire.planner.scaling import LEAST_GAIN, ScalePoint, paying_ranges
from gradwire.planner.search.predict import Prediction
from gradwire.units import format_duration

WIDTH = 100
_LEGEND = (
    "step = compute + bare; exchange = encode + decode + frames + wait, of which computation does not hide "
    "bare. All in {unit}. frames: handing them over and taking them; wait: for the wire, other hosts and "
    "cores. MB: sent by the busiest host; eff: a single host's step / step."
)


def lines(choice: Choice, top: int) -> list[str]:
    """Return inputs, ranking, choice and scaling."""
    wide = max(len(each.name) for each in choice.inputs) if choice.inputs else 0
    told = [f"{each.name:<{wide}}  {each.value} ({each.source})" for each in choice.inputs]
    inputs = [line for each in told for line in _wrapped(each, " " * (wide + 2))]
    refused = _wrapped(_refused(choice), "  ")
    return [
        *inputs,
        *refused,
        "",
        *ranking_lines(choice, top),
        "",
        *_wrapped(choice.explanation, ""),
        *(["", *scaling_lines(choice.scaling)] if choice.scaling else []),
    ]


def ranking_lines(choice: Choice, top: int) -> list[str]:
    """Return the table of the fastest plans; the chosen one has a mark, and a line of its own if need be."""
    shown = list(choice.ranking[:top])
    if choice.prediction not in shown:
        shown.append(choice.prediction)
    slowest_s = max(each.step_s for each in shown)
    unit, scale = ("s", 1.0) if slowest_s >= 10 else ("ms", 1e3)
    alone_s = choice.query.workload.compute_s
    rows = [_row(each, each is choice.prediction, scale, alone_s) for each in shown]
    more = len(choice.ranking) - len(shown)
    pruned = choice.selection.considered - len(choice.ranking)
    note = f"{_LEGEND.format(unit=unit)} {_compute(choice, shown)}"
    if more > 0 or pruned > 0:
        within = f"{100 * choice.selection.uncertainty:.0f} % of the fastest"
        note += f" Not shown: {max(0, more)} slower plans, and {pruned} that cannot come within {within}."
    return [*_table(rows), *_wrapped(note, "")]


def scaling_lines(points: Sequence[ScalePoint]) -> list[str]:
    """Return the table over numbers of hosts, and how many of them pay."""
    rows = [
        {
            "hosts": str(point.hosts),
            "step": format_duration(point.step_s),
            "throughput": f"{point.speedup:.2f}x",
            "efficiency": f"{100 * point.efficiency:.0f} %",
            "plan": "" if point.prediction is None else _plan_words(point.prediction),
        }
        for point in points
    ]
    return [*_table(rows), *_wrapped(f"{verdict(points)} Every host keeps its batch.", "")]


def verdict(points: Sequence[ScalePoint]) -> str:
    """Return, from one number of hosts to the next, whether further hosts pay."""
    ranges, first, last = paying_ranges(points), points[0].hosts, points[-1].hosts
    enough = f"{LEAST_GAIN:g} of a host's throughput"
    if not ranges:
        return f"No further host pays: each adds less than {enough}."
    if ranges == [(first, last)]:
        return f"Every host up to {last} still adds {enough} or more."
    if len(ranges) == 1 and ranges[0][0] == first:
        return f"Up to {ranges[0][1]} hosts pay: beyond, a further host adds less than {enough}."
    where = " and ".join(f"from {low} to {high}" for low, high in ranges)
    return f"Further hosts pay {where}: elsewhere each adds less than {enough}."


def _compute(choice: Choice, shown: Sequence[Prediction]) -> str:
    """Return what computation takes, by itself and in the pipelines that are shown."""
    words = f"Compute takes {format_duration(choice.query.workload.compute_s)}"
    pipelines = sorted({each.plan.pipeline for each in shown if each.plan.pipeline > 1})
    for pipeline in pipelines:
        seconds = choice.query.workload.compute_with_s(pipeline)
        words += f", {format_duration(seconds)} with the local updates of K={pipeline}"
    return f"{words}."


def _row(prediction: Prediction, is_chosen: bool, scale: float, alone_s: float) -> dict[str, str]:
    plan = prediction.plan
    terms = {
        "step": prediction.step_s,
        "bare": prediction.exposed_s,
        "exchange": prediction.exchange_s,
        "encode": prediction.cost.encode_s,
        "decode": prediction.cost.decode_s,
        "frames": prediction.cost.handling_s,
        "wait": prediction.cost.wait_s,
    }
    return {
        "": ">" if is_chosen else "",
        "codec": str(plan.codec),
        "algorithm": plan.algorithm,
        "seg": _size(plan.segment_nbytes),
        "bkt": "" if plan.bucket_nbytes is None else _size(plan.bucket_nbytes),
        "K": "" if plan.pipeline == 1 else str(plan.pipeline),
        **{name: _figure(scale * seconds) for name, seconds in terms.items()},
        "MB": _figure(prediction.cost.wire_nbytes / 1e6),
        "ratio": f"{prediction.ratio:.3g}",
        "eff": f"{100 * alone_s / prediction.step_s:.0f}%" if alone_s else "",
    }


def _table(rows: list[dict[str, str]]) -> list[str]:
    """Align the columns, without those that are empty; figures go to the right."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    words = {"", "codec", "algorithm", "plan"}
    while True:
        widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]
        if sum(widths) + len(widths) - 1 <= WIDTH:
            break
        names.pop()
    cells = [dict(zip(names, names, strict=True)), *({name: row[name] for name in names} for row in rows)]
    return [
        " ".join(
            row[name].ljust(width) if name in words else row[name].rjust(width)
            for name, width in zip(names, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def _refused(choice: Choice) -> str:
    over = [
        f"{each.codec} ({each.error:.2g}{'' if each.guaranteed else ', measured'})"
        for each in choice.admissions
        if not each.admitted
    ]
    return f"beyond the largest error of {choice.query.largest_error:g}: {', '.join(over)}" if over else ""


def _plan_words(prediction: Prediction) -> str:
    plan = prediction.plan
    pipeline = f", K={plan.pipeline}" if plan.pipeline > 1 else ""
    return f"{plan.codec}, {plan.algorithm}{pipeline}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}" if value >= 0.0995 else f"{value:.2f}"


def _size(nbytes: int) -> str:
    for unit, power in (("M", 20), ("k", 10)):
        if nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{unit}"
    return str(nbytes)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False)
