"""What ranks that are threads say to each other beside their links."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from gradwire.benchmark.allreduce import Gather


class Meeting:
    """Collects one row a rank; ``at(rank)`` is a rank's way in."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barriers = 0
        self._rows: list[torch.Tensor] = [torch.empty(0)] * world
        self._gate = threading.Barrier(world)

    def at(self, rank: int) -> Gather:
        def gather(values: torch.Tensor) -> torch.Tensor:
            self._rows[rank] = values
            self._gate.wait(20)
            rows = torch.stack(self._rows)
            self._gate.wait(20)
            return rows

        return gather

    def barrier(self) -> None:
        if self._gate.wait(20) == 0:
            self.barriers += 1


@pytest.fixture
def make_meeting() -> Callable[[int], Meeting]:
    return Meeting
