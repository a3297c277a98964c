"""Every codec that the batteries test: the examples of the table's rows, and what plans make of codecs."""

from __future__ import annotations

from gradwire.codecs import TABLE, Codec, parse
from gradwire.plan import Plan

SPECS = [spec for row in TABLE for spec in row.codec.EXAMPLES]
PLANS = {
    str(plan.encoding): plan.to_json()
    for plan in (
        Plan(offload="inceptionn:2^-10"),
        Plan(offload="truncate:16"),
        Plan(parse("errbound:2^-10"), scale="auto"),
        Plan(parse("inceptionn:2^-6,bounded"), scale="auto"),
        Plan(offload="inceptionn:2^-10", scale="auto"),
    )
}
"""A codec that no spec names -> the plan that makes it."""
EVERY = [*SPECS, *PLANS]


def make(name: str) -> Codec:
    """Return a new codec of this name."""
    return Plan.from_json(PLANS[name]).encoding if name in PLANS else parse(name)
