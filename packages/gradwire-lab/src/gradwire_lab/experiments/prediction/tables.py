"""Tables of predictions: points, choices by prediction, and summaries of errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from gradwire.tables import Column, Table, figure
from gradwire.units import exact_size, format_duration, parse_duration
from gradwire_lab.columns import Columns, ms_of, table_of, text_of
from gradwire_lab.experiments.experiment import Row

GOOD = 0.03
"""The largest share by which a good choice may be slower than the best plan."""
CODECS = ("identity", "errbound:2^-10", "quantize:8")
ALGORITHMS = ("backend", "ring", "butterfly", "tree", "star", "hierarchical")
SHARDED = "sharded"
"""A value of ``algorithm`` for a reduce-scatter with the codec, and an all-gather of weight updates."""
DISTANT_CODECS = ("identity", "fp8", "ecsq:0.25")
"""The codecs of steps between distant hosts."""


def error(row: Row) -> float:
    """Return the prediction's error as a share of the measured time."""
    return float(row["predicted_s"] / row["measured_s"] - 1)


TIMES: Columns[Row] = (
    (Column("measured", "ms"), ms_of("measured_s")),
    (Column("fastest", "ms"), ms_of("fastest_s")),
    (Column("slowest", "ms"), ms_of("slowest_s")),
    (Column("predicted", "ms"), ms_of("predicted_s")),
    (Column("error", "%"), lambda row: f"{100 * error(row):+.1f}"),
)
POINTS: Columns[Row] = (
    (Column.of_text("algorithm"), text_of("algorithm")),
    (Column.of_text("codec"), text_of("codec")),
    *TIMES,
)
STEPS: Columns[Row] = (
    (Column("buckets"), text_of("buckets")),
    (Column("lanes"), text_of("lanes")),
    (Column.of_text("codec"), text_of("codec")),
    *TIMES,
)
CHOICES = (
    Column("codecs"),
    Column.of_text("chosen plan"),
    Column("measured", "ms"),
    Column.of_text("best plan"),
    Column("measured", "ms"),
    Column("loss", "%"),
)


def is_distant(row: Row) -> bool:
    """Return whether a row is a step between distant hosts; older records have no such steps."""
    return "delay" in row


def choose(rows: Sequence[Row]) -> Row:
    """Return the row that the planner chooses: the simplest plan that ties with the fastest prediction."""
    from gradwire.planner.predict import UNCERTAINTY

    fastest_s = min(row["predicted_s"] for row in rows)
    ties = [row for row in rows if row["predicted_s"] * (1 - UNCERTAINTY) <= fastest_s]
    return min(ties, key=_preference)


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return measurements and choices per network and size, and summaries, distant hosts last."""
    near, distant = ([row for row in rows if is_distant(row) == wanted] for wanted in (False, True))
    found: list[str | Table] = []
    if near:
        found += _part(near, POINTS, CODECS, _exchange_title, "predictions")
    if distant:
        found += [""] if near else []
        found += _part(distant, STEPS, DISTANT_CODECS, _step_title, "predictions between distant hosts")
    return found


def _part(
    rows: Sequence[Row],
    columns: Columns[Row],
    codecs: Sequence[str],
    title: Callable[[Row], str],
    what: str,
) -> list[str | Table]:
    there = defaultdict(list)
    for row in rows:
        there[row["hosts"], row["rate"], row.get("delay"), row["nbytes"]].append(row)
    found: list[str | Table] = []
    losses: list[float] = []
    for group in there.values():
        found += [title(group[0]), "", table_of(columns, group), ""]
        comparable = [row for row in group if row["algorithm"] != SHARDED]
        found += [Table(CHOICES, _choices(comparable, codecs, losses)), ""]
    errors = sorted(abs(error(row)) for row in rows)
    good = sum(loss <= GOOD for loss in losses)
    return [
        *found,
        f"Error of {len(rows)} {what}: median {100 * errors[len(errors) // 2]:.1f} %, 90th percentile "
        f"{100 * errors[int(0.9 * len(errors))]:.1f} %, largest {100 * errors[-1]:.1f} %.",
        "",
        f"{good} of {len(losses)} choices by prediction are within {100 * GOOD:.0f} % of the best plan.",
    ]


def _choices(group: Sequence[Row], codecs: Sequence[str], losses: list[float]) -> list[tuple[str, ...]]:
    """Return the planner's choices in a group of rows, and append the choices' extra times to ``losses``."""
    found = []
    for number in range(1, len(codecs) + 1):
        allowed = [row for row in group if row["codec"] in codecs[:number]]
        if not allowed:
            continue
        chosen, best = choose(allowed), min(allowed, key=lambda row: row["measured_s"])
        losses.append(chosen["measured_s"] / best["measured_s"] - 1)
        plans = [text for row in (chosen, best) for text in (_plan(row), figure(1e3 * row["measured_s"]))]
        found.append((str(number), *plans, f"{100 * losses[-1]:.1f}"))
    return found


def _preference(row: Row) -> tuple[int, ...]:
    if is_distant(row):
        codec = DISTANT_CODECS.index(row["codec"])
        return codec > 0, row["lanes"], codec, row["buckets"]
    return CODECS.index(row["codec"]), ALGORITHMS.index(row["algorithm"])


def _exchange_title(row: Row) -> str:
    return f"{row['hosts']} hosts at {row['rate']}, {exact_size(row['nbytes'])}:"


def _step_title(row: Row) -> str:
    trip = format_duration(2 * parse_duration(row["delay"]))
    return f"{row['hosts']} hosts at {row['rate']}, round trip {trip}, steps of {exact_size(row['nbytes'])}:"


def _plan(row: Row) -> str:
    if is_distant(row):
        buckets = f"{row['buckets']} buckets" if row["buckets"] > 1 else "1 bucket"
        lanes = f", {row['lanes']} lanes" if row["lanes"] > 1 else ""
        return f"{row['codec']}, {buckets}{lanes}"
    return f"{row['algorithm']} {row['codec']}"
