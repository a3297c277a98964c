from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.ddp.checks import warn_about_broadcast_buffers


def ddp(*, buffered: int, rank: int = 0, size: int = 4, broadcast: bool = True) -> Any:
    """Return what counts of a DDP model with a gradient of 4 kB and so many floats of buffers."""
    module = nn.Linear(1000, 1, bias=False)
    module.register_buffer("mask", torch.zeros(buffered))
    group = SimpleNamespace(rank=lambda: rank, size=lambda: size)
    return SimpleNamespace(
        process_group=group, broadcast_buffers=broadcast, module=module, parameters=module.parameters
    )


def test_rank_0_says_what_ddp_broadcasts(caplog: pytest.LogCaptureFixture) -> None:
    warn_about_broadcast_buffers(ddp(buffered=500))
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "DDP also broadcasts 2kB of buffers uncompressed in each forward pass (gradients: 4kB"
    )
    assert "pass broadcast_buffers=False" in record.getMessage()


@pytest.mark.parametrize(
    "fine",
    [
        {"buffered": 20},
        {"buffered": 0},
        {"buffered": 500, "rank": 1},
        {"buffered": 500, "size": 1},
        {"buffered": 500, "broadcast": False},
    ],
)
def test_nothing_is_said_of_few_or_none(fine: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    warn_about_broadcast_buffers(ddp(**fine))
    assert not caplog.records
