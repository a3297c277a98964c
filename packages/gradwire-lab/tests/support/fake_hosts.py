"""Exchanges without a testbed: rows with the fields that hosts report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

Cells = Sequence[Mapping[str, Any]]


def fake_exchanges(monkeypatch: pytest.MonkeyPatch, exchanges: ModuleType) -> dict[str, Any]:
    """Let each cell take 1 s on a line of 0.1 ms and 5 MB/s; return what the hosts get beside cells."""
    asked: dict[str, Any] = {}

    def measure(module: str, cells: Cells, report: Callable[[Any], None], more: Mapping[str, Any]) -> None:
        assert module == exchanges.__name__
        asked.update(more)
        figures = {"processor_s": 0.1, "line_latency_s": 1e-4, "line_nbytes_per_s": 5e6, "cores": 2}
        for cell in cells:
            report({**cell, "seconds": [1.0], **figures})

    monkeypatch.setattr(exchanges, "measure_cells", measure)
    return asked
