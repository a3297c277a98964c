from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.framework_ranks import STEPS, pytorch_lightning_trainer

pytestmark = pytest.mark.processes
RunProcesses = Callable[..., list[Any]]


def test_the_strategy_and_the_callback_compress(run_processes: RunProcesses) -> None:
    seen = run_processes(2, pytorch_lightning_trainer, timeout_s=110)
    assert seen[0]["weights"] == seen[1]["weights"]
    for rank in seen:
        for way in ("named", "callback"):
            assert rank[way]["steps"] == 2 * STEPS
            assert 0 < rank[way]["wire"] < rank[way]["raw"]
