"""A worker at another step than its server, as the core's tests have ranks of its methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradwire.codecs import parse
from gradwire.links import Link
from gradwire.plan import Plan
from support.lab_methods import METHODS
from sync.conformance import test_out_of_step as core


def server(model: nn.Module, optimizer: torch.optim.Optimizer, link: Link) -> Any:
    return METHODS["ps"].make(model, optimizer, Plan(parse("fp8"), "star"), link)


over_servers = pytest.mark.parametrize("kind", [server])

test_a_rank_that_took_a_step_less_is_named = over_servers(core.test_a_rank_that_took_a_step_less_is_named)
test_a_rank_that_resumed_without_its_state_is_named = over_servers(
    core.test_a_rank_that_resumed_without_its_state_is_named
)
