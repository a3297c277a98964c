"""The fixture of the native engine's tests."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.exchange.engine import EngineRun


@pytest.fixture
def native_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the ranks of the engine's runs, one by one."""
    ranks: list[int] = []
    run = EngineRun.run

    def counted(self: EngineRun) -> Any:
        ranks.append(self._resources.link.rank)
        return run(self)

    monkeypatch.setattr(EngineRun, "run", counted)
    return ranks
