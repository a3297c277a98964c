from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import run_ranks

Run = Callable[..., list[Any]]


@pytest.mark.processes
@pytest.mark.parametrize("views", [False, True])
def test_a_plain_step_of_a_comparison_has_the_bits_of_ddp(run_processes: Run, views: bool) -> None:
    for plain, stood_in in run_processes(3, run_ranks.stood_in, views):
        assert torch.equal(plain, stood_in)
