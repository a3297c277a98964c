"""What DDP averages has its bits with gradwire; what it silently leaves unaveraged is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import uses_ranks

Ranks = Callable[..., list[Any]]
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", uses_ranks.FINE)
def test_what_ddp_averages_has_its_bits(name: str, run_processes: Ranks) -> None:
    plain, ours = (run_processes(2, uses_ranks.weights, name, plan) for plan in (None, "identity"))
    assert torch.equal(plain[0][0], plain[1][0]), "DDP averages it"
    for (oracle, _), (mine, said) in zip(plain, ours, strict=True):
        assert said == ""
        assert torch.equal(mine, oracle)


@pytest.mark.parametrize("name", uses_ranks.UNAVERAGED)
def test_what_ddp_leaves_unaveraged_is_refused(name: str, run_processes: Ranks) -> None:
    plain, ours = (run_processes(2, uses_ranks.weights, name, plan) for plan in (None, "fp16"))
    assert not torch.equal(plain[0][0], plain[1][0]), "DDP says nothing"
    for _, said in ours:
        assert said.startswith("AttachError: ")
        assert "averaged" in said or "averages no gradient" in said
