"""What a process may know of the testbed that it runs in: its network, as records and titles tell it."""

from __future__ import annotations

import json
import os
from typing import Any

from gradwire.errors import JobError, SpecError
from gradwire.testbed.network.topology import Topology
from gradwire.testbed.run.variables import TOPOLOGY
from gradwire.units import format_rate


def is_inside() -> bool:
    """Return whether this process runs on a host of a testbed: all hosts are then this one machine."""
    return bool(os.environ.get(TOPOLOGY))


def described() -> Any:
    """Return what the testbed says about itself, None outside of one. Raises ``JobError``."""
    if not is_inside():
        return None
    text = os.environ[TOPOLOGY]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobError(f"{TOPOLOGY} must hold JSON, but {text[:40]!r} came; unset it: {error}") from error


def rates_in_words() -> str | None:
    """Return the rates of the testbed's links, as in ``1gbit``; None outside of one. Raises ``JobError``."""
    try:
        return described_in_words(described())
    except SpecError as error:
        raise JobError(f"{TOPOLOGY} must describe a network, but does not ({error}); unset it") from error


def described_in_words(found: Any) -> str | None:
    """Return the rates of what ``described`` returned, here or before. Raises ``SpecError``."""
    if found is None:
        return None
    try:
        topology = Topology.from_dict(found["topology"])
    except (SpecError, KeyError, TypeError) as error:
        raise SpecError(str(error)) from error
    slowest, *others = sorted({float("inf") if r is None else r for r in topology.rates_nbytes_per_s})
    rates = format_rate(slowest) + (f" to {format_rate(others[-1])}" if others else "")
    core = topology.core_nbytes_per_s
    return rates if core is None else f"{rates}, {format_rate(core)} between groups"
