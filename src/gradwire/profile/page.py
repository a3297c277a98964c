"""The page of a profile: what the script did, and what gradwire would give it, here and elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gradwire.auto.estimates.estimate import Estimate
from gradwire.auto.estimates.observed import Observed
from gradwire.auto.estimates.report import LEGEND, gain, observation, table
from gradwire.page import Report, Section, report_page
from gradwire.timing.replay.line import Line
from gradwire.units import counted, format_duration

SCHEMA = "gradwire.profile/1"


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a profile's record."""
    observed = _observed(record["observed"])
    estimates = [Estimate.from_json(json.dumps(each)) for each in record["estimates"]]
    sections: list[Section] = [
        ("The script without gradwire", [observation(observed)]),
        ("With gradwire", [("Steps on each network", table(estimates)), LEGEND]),
    ]
    title = f"gradwire profile: {observed.kind} on {counted(observed.world, 'rank')}"
    return report_page(Report(title, verdict(estimates[0]), sections), record)


def verdict(first: Estimate) -> str:
    """Return what gradwire would give on the first network, in a sentence."""
    where = f"On {'this network' if first.network == 'this one' else first.network}"
    plain, step = format_duration(first.plain_s), format_duration(first.step_s)
    if first.is_noisy:
        return f"{where}, steps are too noisy to say what gradwire would gain: {step} instead of {plain}."
    if first.speedup * (1 + first.spread) <= 1:
        return f"{where}, gradwire would not make a step shorter: {step} instead of {plain}."
    if first.speedup <= 1 + first.spread:
        return f"{where}, a step would take about as long with gradwire: {step} instead of {plain}."
    return f"{where}, a step would be {gain(first, first.speedup)} as fast: {step} instead of {plain}."


def _observed(values: Mapping[str, Any]) -> Observed:
    """Return what was observed, without the gradients, which records don't have."""
    fields: dict[str, Any] = {name: values[name] for name in Observed.__dataclass_fields__ if name in values}
    line = fields["line"]
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Observed(**{**fields, **lists, "line": None if line is None else Line(**line), "gradients": ()})


PAGES = MappingProxyType({SCHEMA: page_of})
"""The page of a record by its schema."""
