"""A line that ``auto`` is told instead of measuring it, so that choices do not depend on the machine."""

from __future__ import annotations

import pytest

from gradwire.auto import costs, decide, network
from gradwire.timing.replay.host import HostCost

Told = dict[str, tuple[float, ...]]
SLOW, FAST = (1e-4, 1e5, 0.0, 1.0), (1e-7, 1e13, 0.0, 1.0)


def tell_line(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Tell a slow line until the entry ``"line"`` changes, and cheap frames; try no plan, name no file."""
    now: Told = {"line": SLOW}
    monkeypatch.setattr(network, "own_line", lambda _link: now["line"])
    monkeypatch.setattr(costs, "measure_host", lambda *_: HostCost(cores=4))
    monkeypatch.setattr(decide, "MOST_TRIED", 1)
    monkeypatch.delenv("GRADWIRE_AUTO", raising=False)
    return now
