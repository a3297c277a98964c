from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import profile_ranks


@pytest.mark.processes
def test_a_sharded_run_estimates_itself_and_keeps_its_bits(run_processes: Callable[..., list[Any]]) -> None:
    results = run_processes(2, profile_ranks.asked_sharded)
    for found, same in results:
        assert same
        assert found == results[0][0], "all ranks know the same"
        nothing, told = found
        assert nothing is None, "the first call begins to record"
        assert (told["network"], told["hosts"], told["kind"]) == ("10mbit", 4, "FSDP2")
        assert told["plain_s"] > 0
        assert told["limit"]["name"] in ("line", "computation", "CPU")
