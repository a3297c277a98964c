"""Estimates as a table, and as a record."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.auto.estimates.estimate import Estimate
from gradwire.auto.estimates.observed import Observed
from gradwire.planner.explain import name_coding
from gradwire.tables import Column, Table, figure
from gradwire.units import counted, format_duration, format_size

LEGEND = (
    "All times are predicted by one model. gain: how many times as fast a step is; to loss: how many times "
    "as fast training comes to the same loss, with the extra steps that follow from the gradients' noise. "
    "Ranges follow from how much the observed steps scatter, and from how far the model is off for them; "
    "noisy: by more than 15 %. limit: what takes most of the step with gradwire; CPU: codecs and frames."
)


def report(
    observed: Observed, estimates: Sequence[Estimate], predicted_s: float | None = None
) -> list[str | Table]:
    """Return what was observed, and a row for each place.

    ``predicted_s`` is what the step that was observed would take as predicted, which says what to think of
    the other predictions.
    """
    return [observation(observed) + _checked(observed, predicted_s), "", table(estimates), LEGEND]


def _checked(observed: Observed, predicted_s: float | None) -> str:
    if predicted_s is None:
        return ""
    off = 100 * (predicted_s / observed.step_s - 1)
    return (
        f" Predicted like the steps below, this one would take {format_duration(predicted_s)} ({off:+.0f} %)."
    )


def observation(observed: Observed) -> str:
    """Return what the run did without gradwire, in a sentence or two."""
    nbytes = 4 * sum(observed.counts)
    line = "" if observed.line is None else f"; the slowest line carries {observed.line}"
    return (
        f"{observed.kind} on {observed.world} ranks, {observed.ranks_per_machine} of them on this machine, "
        f"{counted(observed.steps, 'step')}: {format_duration(observed.step_s)} a step, of which "
        f"{format_duration(observed.compute_s)} are computation and {format_duration(observed.exposed_s)} "
        f"waiting. {format_size(nbytes)} of gradients in {counted(len(observed.counts), 'bucket')}{line}."
    )


def gain(estimate: Estimate, ratio: float) -> str:
    """Return one of an estimate's ratios as a range, such as ``1.2-1.4x``, or ``noisy``."""
    if estimate.is_noisy:
        return "noisy"
    low, high = (f"{each:.3g}" for each in (ratio / (1 + estimate.spread), ratio * (1 + estimate.spread)))
    return f"{low}x" if low == high else f"{low}-{high}x"


def table(estimates: Sequence[Estimate]) -> Table:
    """Return a row for each estimate."""
    slowest_s = max(max(each.plain_s, each.step_s) for each in estimates)
    unit, scale = ("s", 1.0) if slowest_s >= 100 else ("ms", 1e3)
    columns = (
        Column.of_text("network"),
        Column("hosts"),
        Column(estimates[0].kind, unit),
        Column.of_text("plan"),
        Column("step", unit),
        Column("gain"),
        Column("to loss"),
        Column.of_text("limit"),
    )
    rows = [
        (
            each.network,
            str(each.hosts),
            figure(scale * each.plain_s),
            f"{name_coding(each.plan.encoding)} {each.plan.algorithm}",
            figure(scale * each.step_s),
            gain(each, each.speedup),
            gain(each, each.speedup_to_loss),
            str(each.limit),
        )
        for each in estimates
    ]
    return Table(columns, rows)
