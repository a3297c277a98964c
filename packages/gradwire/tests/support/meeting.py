"""What ranks that are threads say to each other beside their links."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.launch.local import RankContext

Gather = Callable[[torch.Tensor], torch.Tensor]


class Meeting:
    """Collects one row a rank; ``at(rank)`` is a rank's way in."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barriers = 0
        self._rows: list[torch.Tensor] = [torch.empty(0)] * world
        self._gate = threading.Barrier(world)
        self._said: dict[str, str] = {}
        self._news = threading.Condition()

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

    def say(self, word: str, text: str) -> None:
        with self._news:
            self._said[word] = text
            self._news.notify_all()

    def hear(self, word: str) -> str:
        with self._news:
            assert self._news.wait_for(lambda: word in self._said, 20), f"nobody says {word!r}"
            return self._said[word]

    @contextmanager
    def met(self, context: RankContext[Any], _timeout_s: float) -> Iterator[Any]:
        """Take the place of ``met_ranks``; a rank finds its link where others find the store."""
        link: Any = context.join_store()
        gather = self.at(context.rank)

        def all_reduce(tensor: torch.Tensor) -> None:
            tensor.copy_(gather(tensor.clone()).sum(0))

        yield SimpleNamespace(
            rank=context.rank,
            world=context.world,
            connect=lambda _rate: link,
            gather=gather,
            barrier=self.barrier,
            all_reduce=all_reduce,
            say=self.say,
            hear=self.hear,
        )


@pytest.fixture
def make_meeting() -> Callable[[int], Meeting]:
    return Meeting
