"""What DDP itself comes to, trained once for each model and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.learning_ranks import DDP, Learned, learn

RunProcesses = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def known() -> dict[tuple[str, str], Learned]:
    """What this worker has trained already."""
    return {}


@pytest.fixture
def ddp(
    task: str, optimizer: str, known: dict[tuple[str, str], Learned], run_processes: RunProcesses
) -> Learned:
    """Return what DDP's own all-reduce comes to with plain losses, as it would with any factor."""
    if (task, optimizer) not in known:
        known[task, optimizer] = run_processes(2, learn, task, optimizer, 1.0, DDP)[0]
    return known[task, optimizer]
